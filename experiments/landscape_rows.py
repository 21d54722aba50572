"""Rows of a race: quality of gradients, and regret of what would be deployed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.landscape_file import Landscape
from experiments.landscape_problems import PATH, VALUES, Entry, Problem
from experiments.landscape_steps import Stepper, estimate, learn
from metaharness.stats import mean_interval

if TYPE_CHECKING:
    from experiments.landscape_race import RaceConfig
_CHOICE_SEEDS = 1000
"""Learning rates are chosen on seeds from here on."""


class Settings(NamedTuple):
    """Where a problem's gradients are estimated: every seed at every scale.

    keys ``[scale * seed]``; logits and exact gradients over the same axis.
    """

    keys: jax.Array
    logits: Any
    exact: Any


def make_settings(config: "RaceConfig", problem: Problem) -> Settings:
    seeds = list(range(config.seeds))
    unit = jax.vmap(lambda key: problem.normal(jax.random.fold_in(key, 0), 1.0))(
        run_keys(seeds)
    )
    logits = jax.tree.map(
        lambda x: jnp.concatenate([scale * x for scale in config.scales]), unit
    )
    exact = jax.jit(lambda x: jax.lax.map(jax.grad(problem.expected), x))(logits)
    # the same noise at every scale
    keys = jax.vmap(jax.random.fold_in, (0, None))(
        run_keys(seeds * len(config.scales)), 1
    )
    return Settings(keys, logits, jax.device_get(exact))


def gradient_rows(
    config: "RaceConfig", entry: Entry, stepper: Stepper, settings: Settings
) -> list[dict[str, Any]]:
    """One row a scale: means over estimates for each seed, intervals over seeds."""
    found = estimate(
        entry,
        stepper,
        settings.keys,
        settings.logits,
        past_steps=config.past_steps,
        repeats=config.repeats,
    )
    rows = []
    for number, scale in enumerate(config.scales):
        part = slice(number * config.seeds, (number + 1) * config.seeds)
        metrics, seeds = quality(
            jax.tree.map(lambda x, part=part: x[:, part], found),
            jax.tree.map(lambda x, part=part: x[part], settings.exact),
        )
        rows.append(
            named(entry)
            | {
                "kind": "gradient",
                "scale": scale,
                "harnesses_a_step": entry.rows,
                "items_a_step": entry.num_items,
                "evaluations": entry.cost,
                "past_evaluations": (
                    0
                    if entry.needs == PATH or entry.reference
                    else config.past_steps * entry.cost
                ),
                "reference": entry.reference,
                "metrics": metrics,
                "seeds": seeds,
            }
        )
    return rows


def quality(found: Any, exact: Any) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Cosine and relative squared error of gradients ``[repeat, seed]`` over slots.

    Returns metrics with intervals over seeds, and each seed's means. Cosine of a zero
    estimate is 0. "cosine" and "error" are those of all slots together.
    """
    slots = {"": (found, exact)}
    if isinstance(found, dict):
        slots = {f"_{slot}": (found[slot], exact[slot]) for slot in sorted(found)}
        joined = [
            np.concatenate([np.asarray(part[slot]) for slot in sorted(part)], axis=-1)
            for part in (found, exact)
        ]
        slots = {"": tuple(joined)} | slots
    metrics, seeds = {}, {}
    rng = np.random.default_rng(0)
    for end, (guess, truth) in slots.items():
        guess, truth = np.asarray(guess, np.float64), np.asarray(truth, np.float64)
        size = np.linalg.norm(truth, axis=-1)
        norms = np.linalg.norm(guess, axis=-1) * size
        dot = (guess * truth).sum(axis=-1)
        cosine = np.where(norms > 0, dot / np.where(norms > 0, norms, 1), 0)
        error = ((guess - truth) ** 2).sum(axis=-1) / np.maximum(size**2, 1e-30)
        for name, values in (("cosine", cosine), ("error", error)):
            by_seed = values.mean(axis=0)
            seeds[name + end] = by_seed.tolist()
            metrics[name + end] = mean_interval(by_seed, rng=rng)._asdict()
    return metrics, seeds


def learned_rows(
    config: "RaceConfig", landscape: Landscape, entry: Entry, stepper: Stepper
) -> list[dict[str, Any]]:
    """One row: regret of the deployed harness at every cost of the grid."""
    if entry.needs == PATH and not config.gate_paths_learn:
        return []
    steps = config.steps
    if entry.needs != VALUES and config.gate_steps:
        steps = min(steps, config.gate_steps)
    grid = _grid(config)
    grid = grid[grid <= steps * config.evaluations]
    at = np.minimum(grid // entry.cost, steps) - 1  # steps that a budget pays for

    seeds = [*range(config.seeds), *range(_CHOICE_SEEDS, _CHOICE_SEEDS + config.seeds)]
    found = []
    for rate in config.learning_rates:
        run = learn(entry, stepper, run_keys(seeds), rate, steps=steps)
        found.append(landscape.regret(run.template[at], run.shots[at]).T)
    found = np.stack(found)  # [rate, seed, budget]
    chosen = int(found[:, config.seeds :, -1].mean(axis=1).argmin())
    row = _regret_row(landscape, grid, found[chosen, : config.seeds])
    return [
        named(entry)
        | {"kind": "regret", "learning_rate": config.learning_rates[chosen]}
        | row
    ]


def searched_row(config: "RaceConfig", landscape: Landscape, name: str, search) -> dict:
    grid = _grid(config)
    deployed = np.stack(
        [search(landscape, grid, np.random.default_rng(s)) for s in range(config.seeds)]
    )
    regret = landscape.mean_losses[deployed] - landscape.mean_losses.min()
    return {
        "estimator": name,
        "problem": "search",
        "needs": VALUES,
        "kind": "regret",
    } | _regret_row(landscape, grid, regret)


def named(entry: Entry) -> dict[str, Any]:
    return {
        "estimator": entry.name,
        "problem": entry.problem.kind,
        "needs": entry.needs,
    }


def _grid(config: "RaceConfig") -> np.ndarray:
    """Evaluations at which regret is read: doubling, up to the whole run."""
    total = config.steps * config.evaluations
    count = max(int(np.log2(config.steps)), 0) + 1
    halved = total / 2.0 ** np.arange(count)[::-1]
    return np.unique(np.maximum(halved.astype(int), config.evaluations))


def _regret_row(
    landscape: Landscape, grid: np.ndarray, regret: np.ndarray
) -> dict[str, Any]:
    """Regret ``[seed, budget]`` as means, medians and intervals over seeds."""
    rng = np.random.default_rng(0)
    ordered = np.sort(landscape.mean_losses) - landscape.mean_losses.min()
    worse = 1 - np.searchsorted(ordered, regret[:, -1], side="right") / len(ordered)
    curve = [mean_interval(column, rng=rng)._asdict() for column in regret.T]
    return {
        "evaluations": grid.tolist(),
        "metrics": {
            "regret": curve[-1],
            "median_regret": float(np.median(regret[:, -1])),
            "percentile": float(worse.mean()),
            "optimum_found": float((regret[:, -1] <= 1e-9).mean()),
            "curve": curve,
            "median_curve": np.median(regret, axis=0).tolist(),
        },
        "seeds": {"regret": regret.tolist()},
    }


def run_keys(seeds: Sequence[int]) -> jax.Array:
    return jax.vmap(jax.random.key)(jnp.asarray(list(seeds)))
