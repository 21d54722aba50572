"""A landscape as choice problems, and the estimators that fit each.

Three views of the same harnesses:
  ranking: 1 of M templates, and k of N exemplars in order;
  subset: 1 of M templates, and k of N exemplars in random order (deployed by id);
  whole: the whole harness as one of M * N! / (N - k)! candidates.
In the first two the template slot is enumerated (``exact``, stratified) under every
estimator of the exemplar slot. One evaluation is one harness on one item; a backward
pass counts as one more.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import estimators as es
from experiments.landscape_file import Landscape

TEMPLATE, EXEMPLARS = "template", "exemplars"
PROBLEMS = ("ranking", "subset", "whole")
VALUES, SLOPE, PATH = "values", "slope", "path"
MOST_FEATURES = 512
"""A dense fit with more features than this is left out (it solves n^3 a step)."""
_FITTED = ("linear_proxy", "proxy")


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """One view of a landscape; ``kind`` is one of ``PROBLEMS``.

    Logits are a dict by slot, or for ``whole`` one array.
    """

    kind: str
    landscape: Landscape

    @cached_property
    def families(self) -> dict[str, es.Family]:
        """Slot -> family; ``whole`` has the one slot "harness"."""
        found = self.landscape.families
        if self.kind == "whole":
            num = found[TEMPLATE].n * found[EXEMPLARS].num_outcomes
            return {"harness": es.Family("categorical", num)}
        own = found[EXEMPLARS]
        return {
            TEMPLATE: found[TEMPLATE],
            EXEMPLARS: es.Family(self.kind, own.n, own.k),
        }

    @property
    def learned(self) -> es.Family:
        """The family that the compared estimators work on."""
        return self.families["harness" if self.kind == "whole" else EXEMPLARS]

    def normal(self, key: jax.Array, scale: float) -> Any:
        """Logits drawn from a normal law of this scale."""
        keys = jax.random.split(key, len(self.families))
        out = {
            slot: scale * jax.random.normal(own, (family.n,))
            for own, (slot, family) in zip(keys, self.families.items(), strict=True)
        }
        return out["harness"] if self.kind == "whole" else out

    def harness(self, outcomes: Any) -> tuple[jax.Array, jax.Array]:
        """Template ``[...]`` and shots ``[..., k]`` of outcomes; jittable."""
        if self.kind == "whole":
            at = outcomes[..., 0]
            template = jnp.asarray(self.landscape.template)
            return template[at], jnp.asarray(self.landscape.shots)[at]
        return outcomes[TEMPLATE][..., 0], outcomes[EXEMPLARS]

    def mode(self, logits: Any) -> tuple[jax.Array, jax.Array]:
        """The harness that these logits deploy; a subset's order is that of its ids."""
        if self.kind == "whole":
            return self.harness(jnp.argmax(logits, axis=-1)[..., None])
        picked = {
            slot: family.distribution(logits[slot]).mode()
            for slot, family in self.families.items()
        }
        template, shots = self.harness(picked)
        return template, jnp.sort(shots) if self.kind == "subset" else shots

    @cached_property
    def mean_losses(self) -> np.ndarray:
        """Over all items, ``[outcome]`` or ``[template, outcome]``.

        A subset's loss is the mean over its orders.
        """
        if self.kind == "whole":
            return self.landscape.mean_losses
        outcomes = self.learned.enumerate()
        template = np.arange(self.families[TEMPLATE].n)[:, None]
        if self.kind == "ranking":
            return self.landscape.mean_loss(template, outcomes)
        orders = list(itertools.permutations(range(self.learned.k)))
        each = [self.landscape.mean_loss(template, outcomes[:, o]) for o in orders]
        return np.mean(each, axis=0)

    def expected(self, logits: Any) -> jax.Array:
        """Expected loss by enumeration of every harness; differentiate it."""
        # less the mean: float32 then keeps the differences, gradients stay
        losses = jnp.asarray(self.mean_losses - self.mean_losses.mean(), jnp.float32)
        own = logits if self.kind == "whole" else logits[EXEMPLARS]
        law = self.learned.distribution(own)
        chances = jnp.exp(law.log_prob(jnp.asarray(self.learned.enumerate())))
        if self.kind == "whole":
            return losses @ chances
        return jax.nn.softmax(logits[TEMPLATE]) @ losses @ chances


class Entry(NamedTuple):
    """One estimator on one problem.

    name: with the options that tell it from its relatives; needs: ``VALUES``,
    ``SLOPE`` or ``PATH``; rows: harnesses a step; num_items: items a step, read by all
    rows; cost: evaluations a step; estimator: over the problem's slots, or None where
    it is left out, for the reason in ``refused``; reference: not at equal cost, only
    measured beside the others.
    """

    name: str
    problem: Problem
    needs: str
    rows: int
    num_items: int
    cost: int
    estimator: es.Estimator | None
    refused: str = ""
    reference: bool = False


def entries(
    problem: Problem, *, evaluations: int, samples: int, past_steps: int
) -> list[Entry]:
    """Every member of the catalogue that fits, at the same evaluations a step.

    Args:
        evaluations: a step may cost at most this many.
        samples: harnesses a step, for every estimator that samples.
        past_steps: steps whose evaluations a replay window holds besides this one's.
    """
    out = []
    for name, member in es.ESTIMATORS.items():
        if problem.learned.kind not in member.kinds:
            continue
        for label, options in _variants(name, member.options):
            if "samples" in member.options:
                options = {"samples": samples} | options
            if "window" in member.options:
                options |= {"window": samples * (1 + past_steps)}
            entry = _entry(problem, name, label, options, evaluations)
            if entry.refused and "samples" in options:
                # a draw without replacement takes few rows, and all of them together
                if problem.kind == "whole":
                    fewer, how = samples // 2, "stratified"
                else:
                    fewer = max(samples // problem.families[TEMPLATE].n, 1)
                    how = "crossed"
                options = options | {"samples": fewer}
                again = _entry(problem, name, label, options, evaluations, how)
                entry = entry if again.refused else again
            out.append(entry)
    if past_steps:  # what all of a fit's evaluations would give without one
        times = 1 + past_steps
        all_at_once = _entry(
            problem,
            "reinforce",
            f"reinforce, {times} times the evaluations",
            {"samples": samples * times},
            evaluations * times,
        )
        out.append(all_at_once._replace(reference=True))
    return out


def _variants(name: str, options: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    """Labels and options: each estimator, with and without residual and slope."""
    axes: list[list[tuple[str, dict[str, Any]]]] = [[(name, {})]]
    if "residual" in options:
        axes.append([("", {"residual": 0.0}), (" unbiased", {"residual": 1.0})])
    if "use_slope" in options:
        axes.append([("", {"use_slope": False}), (" + slope", {"use_slope": True})])
    for chosen in itertools.product(*axes):
        label = "".join(part for part, _ in chosen)
        yield label, {k: v for _, own in chosen for k, v in own.items()}


def _entry(
    problem: Problem,
    name: str,
    label: str,
    options: dict,
    evaluations: int,
    enumeration: str = "stratified",
) -> Entry:
    family = problem.learned
    empty = Entry(label, problem, VALUES, 0, 0, 0, None)
    if name in _FITTED and problem.kind == "whole" and family.n > MOST_FEATURES:
        return empty._replace(refused=f"a fit of {family.n} features a step")
    try:
        estimator = es.make(name, family, options)
        if problem.kind != "whole":
            template = problem.families[TEMPLATE]
            estimator = es.combine(
                {
                    TEMPLATE: (template, es.exact(template)),
                    EXEMPLARS: (family, estimator),
                },
                enumeration=enumeration,
                allow_soft_reward=True,
            )
    except ValueError as error:
        return empty._replace(refused=str(error))
    spec = estimator.spec
    needs, per_item = VALUES, spec.rows
    if "path" in spec.needs:
        needs = PATH
        passes = 2 * (problem.landscape.families[TEMPLATE].n if problem.kind == "whole"
                      else 1)  # fmt: skip
        per_item = spec.rows * passes
    elif "probe_slope" in spec.needs:
        needs, per_item = SLOPE, spec.rows + 2
        if problem.kind == "whole":
            return empty._replace(
                needs=SLOPE, refused="no slope for whole harnesses as candidates"
            )
    num_items = min(evaluations // per_item, problem.landscape.num_items)
    if num_items < 1:
        return empty._replace(
            needs=needs,
            refused=f"{per_item} evaluations on one item are more than {evaluations}",
        )
    return Entry(
        label, problem, needs, spec.rows, num_items, per_item * num_items, estimator
    )
