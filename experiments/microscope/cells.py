"""One cell of the comparison: one estimator on one problem, everything measured."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from estimators.interface import PATH
from experiments.microscope import polynomial
from experiments.microscope.chains import RECORDS, Programs
from experiments.microscope.metrics import gradient_metrics, learning_metrics
from experiments.microscope.problems import Problem
from experiments.microscope.variants import Variant

SWEEP_TAUS = (0.1, 0.2, 0.5, 1.0, 2.0)
SWEEP_SCALES = (0.0, 0.5, 1.0, 2.0, 4.0)
_SWEPT = ("relative_bias", "bias_floor", "relative_variance", "cosine", "descent")


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the quick run has smaller ones."""

    instances: int = 4
    """random instances of each problem"""
    chains: int = 16
    """independent runs of each instance, in measuring and in learning"""
    warmup: int = 64
    """steps at the same logits before a gradient is measured: windows fill"""
    measured: int = 600
    """steps measured per chain, after the warm-up"""
    swept: int = 60
    """the same, at each temperature and each scale of the logits"""
    learned: int = 500
    """steps of learning, from logits 0"""
    learning_rate: float = 0.1
    """of Adam"""
    model_share: float = 0.5
    """share of the measured steps where every row is a pass through a model"""
    costly_share: float = 0.0625
    """share of all these steps where it is a pass through a model and back"""

    def with_model(self) -> "Sizes":
        """Sizes for rows that are passes through a model."""
        return self._measure_less(self.model_share)

    def cheaper(self) -> "Sizes":
        """Sizes for rows that are passes through a model and back. They have no past:
        no warm-up."""
        steps = vars(self._measure_less(self.costly_share))
        steps = {name: steps[name] for name in ("measured", "swept")}
        records = int(2 * self.learned * self.costly_share) // RECORDS
        learned = max(records, 1) * RECORDS  # a whole number of steps a record
        return dataclasses.replace(self, warmup=0, learned=learned, **steps)

    def _measure_less(self, share: float) -> "Sizes":
        steps = {
            name: max(int(getattr(self, name) * share), 2)
            for name in ("measured", "swept")
        }
        return dataclasses.replace(self, **steps)


def measure_cell(
    programs: Programs, variant: Variant, problem: Problem, sizes: Sizes, seed: int
) -> dict[str, Any]:
    """Row of results: gradients, learning, and, at default options, the sweeps.

    Raises:
      ValueError: the estimator cannot be built for this problem.
    """
    family = problem.family
    spec = variant.build(family).spec
    evaluations = spec.evaluations(family.n, family.k)
    if problem.costly:
        sizes = sizes.cheaper() if PATH in spec.needs else sizes.with_model()
    row: dict[str, Any] = {
        "estimator": variant.label,
        "problem": problem.name,
        "member": variant.name,
        "default": variant.default,
        "unbiased": spec.unbiased,
        "hard_forward": spec.hard_forward,
        "needs": sorted(spec.needs),
        "evaluations": evaluations,
    }

    def measured(logits: np.ndarray, steps: int, **more: Any) -> tuple[dict, float]:
        ran = programs.run(
            variant,
            problem,
            logits,
            steps=sizes.warmup + steps,
            warmup=sizes.warmup,
            **more,
        )
        per_step = ran.seconds / (sizes.warmup + steps)
        per_step /= programs.instances * programs.chains
        exact = programs.facts(problem, logits).gradient
        return gradient_metrics(ran.sums, exact), per_step

    found, seconds = measured(problem.logits, sizes.measured, seed=seed)
    row |= found
    row["variance_x_cost"] = row["relative_variance"] * evaluations
    row["error_x_cost"] = row["relative_error"] * evaluations
    row["warmup_steps"] = sizes.warmup
    row["warmup_evaluations"] = sizes.warmup * evaluations
    row["wall_us_per_step"] = seconds * 1e6
    row |= _learned(programs, variant, problem, sizes, seed + 1, evaluations)
    row["by_scale"], row["by_tau"] = [], []
    if not variant.default:
        return row
    main = {name: row[name] for name in _SWEPT}
    for scale in SWEEP_SCALES:
        logits = scale * problem.logits
        found = main
        if scale != 1:
            found, _ = measured(logits, sizes.swept, seed=seed + 2)
        entropy = float(np.median(programs.facts(problem, logits).entropy))
        entropy /= float(np.log(family.num_outcomes))
        row["by_scale"].append({"scale": scale, "entropy": entropy} | _short(found))
    for tau in SWEEP_TAUS if variant.tau is not None else ():
        found = main
        if tau != variant.tau:
            found, _ = measured(problem.logits, sizes.swept, seed=seed + 3, tau=tau)
        row["by_tau"].append({"tau": tau} | _short(found))
    return row


def polynomial_row(
    method: polynomial.Method, config: polynomial.PolynomialConfig
) -> dict[str, Any]:
    """Row of polynomial programming: one method, three powers."""
    curves = polynomial.learn(method, config)
    powers = []
    for place, power in enumerate(polynomial.POWERS):
        expected = None
        if config.steps == 8000:
            expected = method.reference.get(power)
        elif config.steps == 2000:
            expected = method.early.get(power)
        value = float(curves[place, -1])
        powers.append(
            {
                "power": power,
                "loss": value,
                "floor": polynomial.floor(power),
                "reference": expected,
                "difference": None if expected is None else value - expected,
                "curve": curves[place].tolist(),
            }
        )
    return {
        "estimator": method.label,
        "problem": "polynomial",
        "member": method.name,
        "steps": config.steps,
        "record_every": config.record_every,
        "powers": powers,
    }


def _learned(
    programs: Programs,
    variant: Variant,
    problem: Problem,
    sizes: Sizes,
    seed: int,
    evaluations: int,
) -> dict[str, Any]:
    ran = programs.run(
        variant,
        problem,
        np.zeros_like(problem.logits),
        steps=sizes.learned,
        learning_rate=sizes.learning_rate,
        seed=seed,
    )
    trace = programs.facts(problem, np.moveaxis(ran.trace, 0, 1))
    last = programs.facts(problem, ran.logits)
    every = max(sizes.learned // RECORDS, 1)
    return learning_metrics(
        trace, last, problem.losses, every=every, evaluations=evaluations
    )


def _short(found: dict[str, float]) -> dict[str, float]:
    return {name: found[name] for name in _SWEPT}
