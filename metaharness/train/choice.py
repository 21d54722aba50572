"""Which estimator learns which slot."""

from collections.abc import Callable
from functools import partial

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
from metaharness.train.config import TrainConfig

Build = Callable[[Family, TrainConfig], Estimator]


def _linear_proxy(family: Family, config: TrainConfig, *, use_slope: bool) -> Estimator:
    search = config.search
    return linear_proxy(
        family,
        samples=search.samples,
        window=_window(config),
        ridge=search.ridge,
        residual=search.residual,
        use_slope=use_slope,
    )


def _exemplar_proxy(family: Family, config: TrainConfig) -> Estimator:
    # the gate's slope is one of the likelihood
    use_slope = config.episodes.prompt_loss == "likelihood"
    return _linear_proxy(family, config, use_slope=use_slope)


def _proxy(family: Family, config: TrainConfig) -> Estimator:
    return proxy(
        family,
        samples=config.search.samples,
        window=_window(config),
        residual=config.search.residual,
    )


def _window(config: TrainConfig) -> int:
    samples = config.search.samples
    return max(config.search.window // samples, 1) * samples


_MEASURED: dict[str, Build] = {
    "linear_proxy": _exemplar_proxy,
    "proxy": _proxy,
    "reinforce": lambda family, config: reinforce(
        family, samples=config.search.samples
    ),
    "relax": lambda family, config: relax(family, samples=config.search.samples),
}
_RELAXED: dict[str, Build] = {
    "perturbed_marginals": lambda family, config: perturbed_marginals(
        family, samples=config.search.relaxed_samples, tau=config.search.tau
    ),
    "simple": lambda family, config: simple(
        family, samples=config.search.relaxed_samples
    ),
    "imle": lambda family, config: imle(family, samples=config.search.relaxed_samples),
}
_POLICY: dict[str, Build] = {
    "reinforce": _MEASURED["reinforce"],
    "linear_proxy": partial(_linear_proxy, use_slope=False),
    "proxy": _proxy,
}


def measured_estimator(space: Space, config: TrainConfig) -> Estimator:
    """From measured losses: ``search.estimator`` on the exemplars,
    ``search.template_estimator`` on the templates (stratified enumeration)."""
    return over_tasks(combine(_prompt_parts(space, config)))


def episode_estimator(space: Space, config: TrainConfig) -> Estimator:
    """As ``measured_estimator``, and ``episodes.estimator`` on every policy slot; each
    slot learns from the loss of its own name (see ``credit``)."""
    parts = _prompt_parts(space, config)
    for slot in space.harness.policy_slots:
        family = space.families[slot]
        parts[slot] = (family, _POLICY[config.episodes.estimator](family, config))
    return over_tasks(combine(parts, learns_from={slot: slot for slot in parts}))


def phi_estimator(space: Space, config: TrainConfig) -> Estimator:
    """The one whose state is ``TrainState.measured``."""
    build = episode_estimator if space.harness.policy_slots else measured_estimator
    return build(space, config)


def _prompt_parts(
    space: Space, config: TrainConfig
) -> dict[str, tuple[Family, Estimator]]:
    search = config.search
    parts: dict[str, tuple[Family, Estimator]] = {}
    if EXEMPLARS in space.families:
        family = space.families[EXEMPLARS]
        parts[EXEMPLARS] = (family, _MEASURED[search.estimator](family, config))
    family = space.families[TEMPLATE]
    if search.template_estimator == "reinforce":
        parts[TEMPLATE] = (family, reinforce(family, samples=search.samples))
    else:
        parts[TEMPLATE] = (family, exact(family))
    return parts


def relaxed_estimator(space: Space, config: TrainConfig) -> Estimator:
    """Through the gate: ``search.relaxed_estimator`` on the exemplars, stratified
    enumeration of templates.

    Templates learn here from a soft exemplar choice; they are learned again from
    deployable harnesses in the measured steps.
    """
    exemplars, template = space.families[EXEMPLARS], space.families[TEMPLATE]
    soft = _RELAXED[config.search.relaxed_estimator](exemplars, config)
    parts = {EXEMPLARS: (exemplars, soft), TEMPLATE: (template, exact(template))}
    return over_tasks(combine(parts, allow_soft_reward=True))


def sampler(space: Space, config: TrainConfig) -> Estimator:
    """Plain draws of every slot, for updates that train theta alone."""
    samples = config.weights.samples
    return over_tasks(
        combine(
            {
                slot: (family, reinforce(family, samples=samples, baseline="none"))
                for slot, family in space.families.items()
            }
        )
    )
