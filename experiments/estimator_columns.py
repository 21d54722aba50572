"""Which gradient estimator for exemplar slots, at the few evaluations one can afford?

    python -m experiments.estimator_columns --out runs/columns

Question: with 8 new sequential losses a step and 32 past ones at the same logits, how
close is one step's estimate to the exact gradient of the *sequential* loss? All 120
subsets (3 of 10 exemplars of mixed quality) in all 6 orders are evaluated with the
real model: that table is the truth, and every estimator draws from it.
Expected (first measured for the design, on other pools): the plug-in ridge fit is best
or near it everywhere; the gate's slope is the best start where the gate can be trusted.
Device and time: one H200, about a minute for two tasks.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from estimators import Estimator, Family, ask, linear_proxy, reinforce, tell
from metaharness.harness.objective import Problem, measured_losses, relaxed_losses
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import Space, build_space
from metaharness.model.load import Model, load_model
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import SplitSizes

SAMPLES, PAST = 8, 32
# A penalty so large that the fit stays at its prior mean: beta * slope alone.
SLOPE_ONLY = 1e9


@dataclass(frozen=True)
class ColumnsConfig:
    """Sizes of the experiment."""

    tasks: tuple[str, ...] = ("number_sequence", "isomorphic_strings")
    model: str = "smollm2-135m"
    pool: int = 10
    k: int = 3
    packs: int = 8
    """rows of packed items behind every loss"""
    scales: tuple[float, ...] = (0.0, 1.0)
    """standard deviations of the logits"""
    settings: int = 5
    """logits drawn for each scale above 0"""
    repeats: int = 400
    """steps of each estimator at each logits"""
    out: Path | None = None
    quick: bool = False
    """smoke run: tiny sizes, whose results mean nothing"""


def estimators_of(family: Family) -> dict[str, Estimator]:
    """Column -> estimator; all see the same number of new losses."""

    def proxy(**options) -> Estimator:
        return linear_proxy(family, samples=SAMPLES, window=SAMPLES + PAST, **options)

    return {
        "leave_one_out": reinforce(family, samples=SAMPLES),
        "ridge_control_variate": proxy(residual=1.0, use_slope=False),
        "slope_control_variate": proxy(residual=1.0, ridge=SLOPE_ONLY),
        "both_control_variate": proxy(residual=1.0),
        "slope_alone": proxy(ridge=SLOPE_ONLY),
        "ridge_alone": proxy(use_slope=False),
        "default": proxy(),
    }


def measure_columns(config: ColumnsConfig, model: Model | None = None) -> dict:
    """Task -> scale -> column -> cosine and relative squared error with intervals."""
    if config.quick:
        config = dataclasses.replace(
            config, tasks=config.tasks[:1], pool=5, k=2, packs=1, settings=1, repeats=5
        )
    model = model or load_model(config.model)
    steps = _make_steps(config)
    out: dict[str, Any] = {}
    for name in config.tasks:
        space, problem = _problem(config, model, name)
        table = _loss_table(config, space, problem)
        slope_at = _make_slope(config, space)
        rows = {}
        for scale in config.scales:
            num = config.settings if scale else 1
            found = [
                _one_setting(config, problem, table, steps, slope_at, scale, number)
                for number in range(num)
            ]
            rows[str(scale)] = _summary(found)
        out[name] = {"linear_r2": _linear_r2(config, table), "by_scale": rows}
    return out


def _problem(config: ColumnsConfig, model: Model, name: str) -> tuple[Space, Problem]:
    task = load_task(name, sizes=SplitSizes(config.pool + 2, 96, 8, 8))
    slot = Exemplars.from_task(
        task, pool=config.pool, k=config.k, share_right=0.5, seed=1
    )
    harness = Harness(slot, Templates(Templates.named("short").pool[:1]))
    space = build_space(model, harness, [task])
    packs = space.pack("train", width=128)
    return space, Problem(model.decoder, space.table, packs, space.encode_pool())


def _loss_table(config: ColumnsConfig, space: Space, problem: Problem) -> jax.Array:
    """Sequential loss of every ordered subset: ``[pool] * k``, NaN elsewhere."""
    orders = np.array(list(itertools.permutations(range(config.pool), config.k)))
    packs = jnp.arange(config.packs, dtype=jnp.int32)[None]

    @jax.jit
    def block(problem, shots):
        template = jnp.zeros(shots.shape[:2], jnp.int32)
        return measured_losses(
            problem, template, shots, packs, jnp.ones((1,), bool),
            width=space.width, chunk=8, implementation=space.implementation,
        ).loss[0]  # fmt: skip

    losses = []
    size = 120
    for start in range(0, len(orders), size):
        part = orders[start : start + size]
        padded = np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])
        losses.append(
            np.asarray(block(problem, jnp.asarray(padded)[None]))[: len(part)]
        )
    table = np.full((config.pool,) * config.k, np.nan, np.float32)
    table[tuple(orders.T)] = np.concatenate(losses)
    return jnp.asarray(table)


def _make_steps(config: ColumnsConfig) -> dict[str, Callable]:
    """Column -> jitted (keys, logits, slope, table) -> gradients ``[key, pool]``."""

    def make(estimator: Estimator) -> Callable:
        reads_slope = "probe_slope" in estimator.spec.needs

        def one(key, logits, slope, table):
            state = estimator.init(key, logits)
            for step in range(1 + PAST // SAMPLES):
                draw = ask(estimator, jax.random.fold_in(key, step), logits, state)
                losses = table[tuple(jnp.moveaxis(draw.outcomes, -1, 0))]
                wanted = slope if reads_slope else None
                told = tell(estimator, logits, draw, losses, state, slope=wanted)
                state = told.state
            return told.logits_grad

        return jax.jit(jax.vmap(one, (0, None, None, None)))

    family = Family("subset", config.pool, config.k)
    return {name: make(one) for name, one in estimators_of(family).items()}


def _make_slope(config: ColumnsConfig, space: Space) -> Callable:
    """Jitted (problem, probe) -> slope of the relaxed loss, float32 ``[pool]``."""
    packs = jnp.arange(config.packs, dtype=jnp.int32)[None]

    @jax.jit
    def slope(problem, probe):
        _, slopes = relaxed_losses(
            problem,
            jnp.zeros((1, 1), jnp.int32),
            probe[None, None],
            packs,
            jnp.ones((1,), bool),
            chunk=1,
            implementation=space.implementation,
        )
        return slopes[0, 0]

    return slope


def _one_setting(config, problem, table, steps, slope_at, scale, number):
    """Column -> gradients ``[repeat, pool]``, and the exact gradient."""
    family = Family("subset", config.pool, config.k)
    key = jax.random.fold_in(jax.random.key(7), number)
    logits = scale * jax.random.normal(key, (config.pool,))
    subsets = jnp.asarray(family.enumerate())
    by_order = [
        table[tuple(subsets[:, list(p)].T)]
        for p in itertools.permutations(range(config.k))
    ]
    mean_loss = jnp.mean(jnp.stack(by_order), axis=0)

    def expected(logits):
        return jnp.exp(family.distribution(logits).log_prob(subsets)) @ mean_loss

    exact = jax.grad(expected)(logits)
    probe = 0.5 * family.distribution(logits).marginals() + 0.5 * config.k / config.pool
    slope = slope_at(problem, probe)
    keys = jax.random.split(jax.random.fold_in(key, 1), config.repeats)
    gradients = {
        name: np.asarray(step(keys, logits, slope, table))
        for name, step in steps.items()
    }
    gradients["slope_unscaled"] = np.asarray(
        jax.jvp(lambda x: family.distribution(x).marginals(), (logits,), (slope,))[1]
    )[None]
    return gradients, np.asarray(exact)


def _summary(found) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    out = {}
    for name in found[0][0]:
        cosines, errors = [], []
        for gradients, exact in found:
            g = gradients[name]
            norms = np.linalg.norm(g, axis=1) * np.linalg.norm(exact)
            cosines.append(np.where(norms > 0, g @ exact / np.maximum(norms, 1e-30), 0))
            errors.append(((g - exact) ** 2).sum(axis=1) / (exact**2).sum())
        out[name] = {
            "cosine": _bootstrap(np.mean, cosines, rng),
            "relative_squared_error": _bootstrap(np.median, errors, rng),
        }
    return out


def _bootstrap(statistic, groups: list[np.ndarray], rng) -> dict[str, float]:
    """Statistic over all values; settings and the repeats inside them are redrawn."""
    draws = []
    for _ in range(400):
        chosen = [groups[i] for i in rng.integers(len(groups), size=len(groups))]
        parts = [g[rng.integers(len(g), size=len(g))] for g in chosen]
        draws.append(statistic(np.concatenate(parts)))
    low, high = np.quantile(draws, [0.025, 0.975])
    value = float(statistic(np.concatenate(groups)))
    return {"value": value, "low": float(low), "high": float(high)}


def _linear_r2(config: ColumnsConfig, table: jax.Array) -> float:
    """Share of the loss variance over subsets that the best linear fit explains."""
    family = Family("subset", config.pool, config.k)
    subsets = family.enumerate()
    orders = itertools.permutations(range(config.k))
    loss = np.mean([np.asarray(table)[tuple(subsets[:, list(p)].T)] for p in orders], 0)
    hot = np.asarray(family.weights(jnp.asarray(subsets)))
    fit = hot @ np.linalg.lstsq(hot, loss, rcond=None)[0]
    return float(1 - ((loss - fit) ** 2).sum() / ((loss - loss.mean()) ** 2).sum())


def main(config: ColumnsConfig) -> None:
    result = measure_columns(config)
    print(json.dumps(result, indent=1))
    if config.out:
        config.out.mkdir(parents=True, exist_ok=True)
        (config.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(tyro.cli(ColumnsConfig, description=__doc__))
