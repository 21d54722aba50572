"""Which estimators are compared: every member that fits, and variants of some."""

import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

import estimators as es
from estimators import ESTIMATORS, Estimator, Family

SAMPLES = 8
"""Rows per step of every sampling estimator."""
TAUS = (0.1, 0.5, 1.0)
_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "reinforce": (
        {"baseline": "none"},
        {"baseline": "running_mean"},
        {"baseline": "group_normalised"},
        {"samples": 4},
    ),
    "unordered_set": ({"samples": 4},),
    "sum_and_sample": ({"samples": 4},),
    "linear_proxy": (
        {"residual": 0.0, "use_slope": False},
        {"residual": 1.0, "use_slope": False},
    ),
    "proxy": ({"residual": 0.0},),
}
"""Member -> options beside the default ones."""
_DISTINCT = ("unordered_set",)
"""Members whose rows are distinct: no more of them than outcomes."""
_QUICK = (
    {"baseline": "none"},
    {"baseline": "group_normalised"},
    {"residual": 1.0, "use_slope": False},
    {"samples": 4},
)
"""Those that a quick run keeps."""


class Variant(NamedTuple):
    """One estimator of the comparison.

    Attributes:
      label: unique, as printed: the name, then the options that differ.
      name: key of ``ESTIMATORS``.
      options: static options.
      tau: temperature, passed when the program runs, or None.
      default: whether all options are the member's own.
    """

    label: str
    name: str
    options: dict[str, Any]
    tau: float | None
    default: bool

    def build(self, family: Family, tau: Any = None) -> Estimator:
        """The estimator; ``tau`` may be traced."""
        options = dict(self.options)
        if self.tau is not None:
            options["tau"] = lambda step: self.tau if tau is None else tau
        return es.make(self.name, family, options)


def variants_of(
    family: Family, *, path: bool, only: Iterable[str] = (), quick: bool = False
) -> list[Variant]:
    """Every member that fits the family, in the catalogue's order.

    Args:
      family: of the problem.
      path: whether the problem has a loss at soft weights; without it the estimators
        that need one are left out.
      only: names or labels to keep; none keeps all.
      quick: the default temperature only, and few other variants.
    """
    keep = set(only)
    found = []
    for name, member in ESTIMATORS.items():
        if family.kind not in member.kinds:
            continue
        short = {variant.label for variant in _of_member(name, member, True)}
        for variant in _of_member(name, member, False):
            if quick and variant.label not in short | keep:
                continue
            fewest = family.num_outcomes
            if name in _DISTINCT and variant.options["samples"] > fewest:
                if not variant.default:
                    continue
                options = variant.options | {"samples": fewest}
                variant = variant._replace(options=options)
            if keep and not keep & {variant.label, variant.name}:
                continue
            if path or not _reads_weights(variant, family):
                found.append(variant)
    return found


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that no variant has.

    Raises:
      ValueError: listing the labels.
    """
    known = {
        word
        for name, member in ESTIMATORS.items()
        for variant in _of_member(name, member, False)
        for word in (name, variant.label)
    }
    unknown = sorted(set(names) - known)
    if unknown:
        raise ValueError(
            f"estimators {', '.join(unknown)}: unknown; use names or labels among "
            f"{', '.join(sorted(known))}."
        )


def _of_member(name: str, member: Any, quick: bool) -> list[Variant]:
    base = {"samples": SAMPLES} if "samples" in member.options else {}
    tau = _default_tau(member)
    found = [Variant(name, name, base, tau, True)]
    for extra in _OPTIONS.get(name, ()):
        if set(extra) <= set(member.options) and (extra in _QUICK or not quick):
            words = " ".join(f"{key}={_text(value)}" for key, value in extra.items())
            label = f"{name} {words}"
            found.append(Variant(label, name, base | extra, tau, False))
    # the temperature of relax is that of its control variate: it biases nothing
    if tau is not None and not quick and name != "relax":
        for other in TAUS:
            if other != tau:
                label = f"{name} tau={other:g}"
                found.append(Variant(label, name, base, other, False))
    return found


def _default_tau(member: Any) -> float | None:
    if "tau" not in member.options:
        return None
    return float(inspect.signature(member.build).parameters["tau"].default)


def _reads_weights(variant: Variant, family: Family) -> bool:
    try:
        needs = variant.build(family).spec.needs
    except Exception:  # reported where the cell is measured
        return False
    return bool({"path", "probe_slope"} & needs)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
