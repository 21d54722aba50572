"""How good one step's gradient is, against the exact one, with Monte-Carlo floors."""

from typing import Any

import numpy as np

from experiments.microscope.chains import Facts, Sums

ABOVE_FLOOR = 3.0
"""A bias counts as seen above this many floors."""
ROUNDING = 1e-4
"""Relative bias that float32 alone may show."""


def gradient_metrics(sums: Sums, exact: np.ndarray) -> dict[str, float]:
    """Medians over instances of the metrics of one estimator on one problem.

    Relative to |g*|^2 of the exact gradient g*:

      relative_bias: |E g - g*| / |g*|, measured; ``bias_floor`` is what an unbiased
        estimator would show with these draws: the standard error of the chains' means.
        For independent draws that is sqrt(relative_variance / draws); it also holds
        where steps of one chain depend on each other through a window.
      relative_variance: tr Cov(g) / |g*|^2 of single steps.
      relative_error: their sum, E |g - g*|^2 / |g*|^2.
      cosine: mean of single steps' cosine to g*; ``cosine_error`` its standard error.
      cosine_of_mean: cosine of the averaged estimate.
      descent: share of steps with g . g* > 0.

    Args:
      sums: of independent chains, at least 2.
      exact: `[instance, pool]`.
    """
    sums = Sums(*(np.asarray(part, np.float64) for part in sums))
    exact = np.asarray(exact, np.float64)
    chains = sums.square.shape[1]
    count = sums.count[0, 0]
    size = (exact**2).sum(-1)
    chain_means = sums.error / count
    mean = chain_means.mean(1)
    bias = (mean**2).sum(-1)
    total = sums.square.mean(1) / count
    draws = chains * count
    variance = np.maximum(total - bias, 0.0) * draws / max(draws - 1, 1)
    spread = ((chain_means - mean[:, None]) ** 2).sum(-1).sum(-1) / (chains - 1)
    floor = spread / chains
    cosines = sums.cosine / count
    average = exact + mean
    lengths = np.sqrt((average**2).sum(-1) * size)
    by_instance = {
        "relative_bias": np.sqrt(bias / size),
        "bias_floor": np.sqrt(floor / size),
        "relative_variance": variance / size,
        "relative_error": total / size,
        "cosine": cosines.mean(1),
        "cosine_error": cosines.std(1, ddof=1) / np.sqrt(chains),
        "cosine_of_mean": (average * exact).sum(-1) / np.maximum(lengths, 1e-300),
        "descent": sums.descent.mean(1) / count,
    }
    found = {name: float(np.median(value)) for name, value in by_instance.items()}
    ratio = by_instance["relative_bias"] / np.maximum(
        ABOVE_FLOOR * by_instance["bias_floor"], ROUNDING
    )
    return found | {
        "instances_biased": int((ratio > 1).sum()),
        "instances": len(exact),
        "draws": int(draws),
    }


def learning_metrics(
    trace: Facts,
    last: Facts,
    losses: np.ndarray,
    *,
    every: int,
    evaluations: int,
) -> dict[str, Any]:
    """Learning curves in the share of the gap to the optimum that is still open.

    The gap is (expected loss - least loss) / (expected loss at the start - least
    loss): "within 1 %" means that 0.01 of it is left.

    Args:
      trace: at `[record, instance, chain]`, moved to `[instance, record, chain]`.
      last: at `[instance, chain]`, after the last step.
      losses: `[instance, outcome]`.
      every: steps between records.
      evaluations: per step.
    """
    best = np.asarray(losses, np.float64).min(1)
    start = np.asarray(trace.value, np.float64)[:, 0].mean(1)
    scale = start - best
    gap = (trace.value - best[:, None, None]) / scale[:, None, None]
    gap = np.concatenate(
        [gap, ((last.value - best[:, None]) / scale[:, None])[:, None]], 1
    )
    gap = np.moveaxis(gap, 1, 0).reshape(gap.shape[1], -1)  # [record, run]
    regret = ((last.mode_loss - best[:, None]) / scale[:, None]).ravel()
    reached = gap <= 0.01
    first = np.where(reached.any(0), reached.argmax(0) * every, np.inf)
    steps = float(np.median(first))
    low, high = np.quantile(first, [0.25, 0.75], method="nearest")
    quartiles = np.quantile(gap, [0.25, 0.5, 0.75], axis=1)
    return {
        "steps_to_1_percent": steps,
        "steps_to_1_percent_quartiles": [float(low), float(high)],
        "evaluations_to_1_percent": steps * evaluations,
        "share_within_1_percent": float((gap[-1] <= 0.01).mean()),
        "final_gap": float(np.median(gap[-1])),
        "mode_regret": float(regret.mean()),
        "share_wrong_mode": float((regret > 1e-6).mean()),
        "runs": gap.shape[1],
        "curve": {
            "every": every,
            "median": quartiles[1].tolist(),
            "low": quartiles[0].tolist(),
            "high": quartiles[2].tolist(),
        },
    }
