"""Estimators by name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from estimators.exact import exact
from estimators.family import Family
from estimators.gumbel_rao import gumbel_rao
from estimators.gumbel_softmax import gumbel_softmax
from estimators.imle import imle
from estimators.interface import Estimator
from estimators.linear_proxy import linear_proxy
from estimators.perturbed_marginals import perturbed_marginals
from estimators.proxy import proxy
from estimators.reinforce import reinforce
from estimators.reinmax import reinmax
from estimators.relax import relax
from estimators.simple import simple
from estimators.soft_subset import soft_subset
from estimators.st_gumbel_softmax import st_gumbel_softmax
from estimators.straight_through import straight_through
from estimators.sum_and_sample import sum_and_sample
from estimators.unordered_set import unordered_set


class Member(NamedTuple):
    """A row of the catalogue.

    Attributes:
      build: (family, **options) -> Estimator.
      kinds: families that it fits.
      options: names of the keyword arguments that ``build`` takes.
    """

    build: Callable[..., Estimator]
    kinds: tuple[str, ...]
    options: tuple[str, ...]


_ALL = ("categorical", "subset", "ranking")

ESTIMATORS: dict[str, Member] = {
    "exact": Member(exact, _ALL, ()),
    "reinforce": Member(reinforce, _ALL, ("samples", "baseline", "decay")),
    "linear_proxy": Member(
        linear_proxy,
        _ALL,
        (
            "samples",
            "window",
            "ridge",
            "decay",
            "residual",
            "use_slope",
            "free_draws",
        ),
    ),
    "unordered_set": Member(unordered_set, ("categorical", "ranking"), ("samples",)),
    "sum_and_sample": Member(
        sum_and_sample, ("categorical",), ("samples", "enumerated")
    ),
    "proxy": Member(
        proxy,
        _ALL,
        (
            "samples",
            "window",
            "residual",
            "inner_steps",
            "network",
            "optimizer",
            "free_draws",
        ),
    ),
    "relax": Member(relax, _ALL, ("samples", "tau", "network", "optimizer")),
    "gumbel_softmax": Member(gumbel_softmax, ("categorical",), ("samples", "tau")),
    "straight_through": Member(straight_through, ("categorical",), ("samples", "tau")),
    "st_gumbel_softmax": Member(
        st_gumbel_softmax, ("categorical",), ("samples", "tau")
    ),
    "gumbel_rao": Member(gumbel_rao, ("categorical",), ("samples", "tau", "inner")),
    "reinmax": Member(reinmax, ("categorical",), ("samples", "tau")),
    "simple": Member(simple, ("subset",), ("samples",)),
    "perturbed_marginals": Member(perturbed_marginals, ("subset",), ("samples", "tau")),
    "imle": Member(imle, ("categorical", "subset"), ("samples", "step")),
    "soft_subset": Member(soft_subset, ("ranking",), ("samples", "tau")),
}
"""Name -> how to build it; ``kinds`` is the table of what fits what."""


def make(
    name: str, family: Family, options: Mapping[str, object] | None = None
) -> Estimator:
    """Build an estimator by name.

    Args:
      name: key of ``ESTIMATORS``.
      family: of the slot.
      options: keyword arguments of the constructor; the rest keep their defaults.

    Raises:
      ValueError: unknown name or option, a family that does not fit, or an option out
        of range.
    """
    if name not in ESTIMATORS:
        raise ValueError(
            f"estimator {name!r} is unknown; use one of {', '.join(ESTIMATORS)}."
        )
    member = ESTIMATORS[name]
    options = dict(options or {})
    unknown = sorted(set(options) - set(member.options))
    if unknown:
        known = ", ".join(member.options) or "none"
        raise ValueError(
            f"estimator {name} has no option {', '.join(unknown)}; it takes: {known}."
        )
    if family.kind not in member.kinds:
        raise ValueError(
            f"estimator {name} does not fit the family {family.kind}; "
            f"it fits {', '.join(member.kinds)}."
        )
    return member.build(family, **options)
