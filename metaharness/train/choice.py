"""Which estimator learns which slot."""

from collections.abc import Callable

from estimators import (
    Estimator,
    Family,
    combine,
    exact,
    imle,
    linear_proxy,
    over_tasks,
    perturbed_marginals,
    proxy,
    reinforce,
    relax,
    simple,
)
from metaharness.harness.space import EXEMPLARS, TEMPLATE, Space
from metaharness.train.search_config import SearchConfig

Build = Callable[[Family, SearchConfig], Estimator]


def _linear_proxy(family: Family, config: SearchConfig) -> Estimator:
    return linear_proxy(
        family,
        samples=config.samples,
        window=_window(config),
        ridge=config.ridge,
        residual=config.residual,
    )


def _proxy(family: Family, config: SearchConfig) -> Estimator:
    return proxy(
        family,
        samples=config.samples,
        window=_window(config),
        residual=config.residual,
    )


def _window(config: SearchConfig) -> int:
    return max(config.window // config.samples, 1) * config.samples


_MEASURED: dict[str, Build] = {
    "linear_proxy": _linear_proxy,
    "proxy": _proxy,
    "reinforce": lambda family, config: reinforce(family, samples=config.samples),
    "relax": lambda family, config: relax(family, samples=config.samples),
}
_RELAXED: dict[str, Build] = {
    "perturbed_marginals": lambda family, config: perturbed_marginals(
        family, samples=config.relaxed_samples, tau=config.tau
    ),
    "simple": lambda family, config: simple(family, samples=config.relaxed_samples),
    "imle": lambda family, config: imle(family, samples=config.relaxed_samples),
}


def measured_estimator(space: Space, config: SearchConfig) -> Estimator:
    """From measured losses: ``config.estimator`` on the exemplars,
    ``config.template_estimator`` on the templates (stratified enumeration)."""
    parts: dict[str, tuple[Family, Estimator]] = {}
    if EXEMPLARS in space.families:
        family = space.families[EXEMPLARS]
        parts[EXEMPLARS] = (family, _MEASURED[config.estimator](family, config))
    family = space.families[TEMPLATE]
    if config.template_estimator == "reinforce":
        parts[TEMPLATE] = (family, reinforce(family, samples=config.samples))
    else:
        parts[TEMPLATE] = (family, exact(family))
    return over_tasks(combine(parts))


def relaxed_estimator(space: Space, config: SearchConfig) -> Estimator:
    """Through the gate: ``config.relaxed_estimator`` on the exemplars, stratified
    enumeration of templates.

    Templates learn here from a soft exemplar choice; they are learned again from
    deployable harnesses in the measured steps.
    """
    exemplars, template = space.families[EXEMPLARS], space.families[TEMPLATE]
    soft = _RELAXED[config.relaxed_estimator](exemplars, config)
    parts = {EXEMPLARS: (exemplars, soft), TEMPLATE: (template, exact(template))}
    return over_tasks(combine(parts, allow_soft_reward=True))


def sampler(space: Space, samples: int) -> Estimator:
    """Plain draws of every slot, for updates that train theta alone."""
    return over_tasks(
        combine(
            {
                slot: (family, reinforce(family, samples=samples, baseline="none"))
                for slot, family in space.families.items()
            }
        )
    )
