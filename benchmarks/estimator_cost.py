"""What an estimator's own arithmetic costs beside the model that it steers.

    python -m benchmarks.estimator_cost --out benchmarks/results/estimator-cost.json
    python -m benchmarks.estimator_cost --small       # any machine, random weights

Times draw + credit (``ask`` and ``tell`` in one jitted function) of every catalogue
member on every family that it fits, N = 64, k = 4, S = 8, against one objective
evaluation in the same run: the measured losses of 8 harnesses on one pack of items, as
a training step of the default job makes them. Repeats are interleaved, so that a busy
machine slows both alike; medians with quartiles. ``share`` is their ratio.
"""

import dataclasses
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import estimators as es
from benchmarks.timing import interleaved_seconds
from metaharness.harness.objective import Problem, measured_losses
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.decoder import random_decoder
from metaharness.model.load import load_model
from metaharness.runlog import provenance
from metaharness.runlog.progress import Progress
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import SplitSizes

_OBJECTIVE = ("objective", "")


@dataclass(frozen=True)
class CostConfig:
    """Sizes; the defaults are those of the published table."""

    out: Path | None = None
    """where the results go as JSON"""
    model: str = "smollm2-135m"
    task: str = "number_sequence"
    pool: int = 64
    k: int = 4
    samples: int = 8
    pack_width: int = 128
    """tokens of a row of packed items"""
    chunk: int = 3
    """harnesses that the model runs at once"""
    repeats: int = 15
    limit: float = 0.02
    """share of one objective evaluation that draw + credit may cost"""
    small: bool = False
    """two random layers of the model and few repeats: shares then mean nothing"""


def main(config: CostConfig) -> dict[str, Any]:
    if config.small:
        config = dataclasses.replace(config, pool=8, k=2, samples=4, repeats=2)
    objective = _objective(config)
    pairs = [
        (name, kind) for name, member in es.ESTIMATORS.items() for kind in member.kinds
    ]
    steps, refused = {}, []
    with Progress("compile", total=len(pairs)) as bar:
        for number, (name, kind) in enumerate(pairs):
            family = es.Family(
                kind, config.pool, 1 if kind == "categorical" else config.k
            )
            try:
                steps[name, kind] = make_step(name, family, config.samples)
            except ValueError as error:
                refused.append({"estimator": name, "family": kind, "why": str(error)})
            bar.update(number + 1)
    with Progress("time", total=config.repeats) as bar:
        seconds = interleaved_seconds(
            {_OBJECTIVE: objective, **steps},
            jax.block_until_ready,
            repeats=config.repeats,
            on_repeat=bar.update,
        )
    objective_s = seconds.pop(_OBJECTIVE)
    median = float(np.median(objective_s))
    rows = [
        {
            "estimator": name,
            "family": kind,
            "seconds": _quartiles(own),
            "share": float(np.median(own)) / median,
            "below_limit": float(np.median(own)) / median < config.limit,
        }
        for (name, kind), own in seconds.items()
    ]
    result = {
        "config": dataclasses.asdict(config) | {"out": None},
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "python": platform.python_version()},
        "commit": provenance.checkout_state(Path(__file__).parent)[0],
        "objective_seconds": _quartiles(objective_s),
        "rows": rows,
        "refused": refused,
    }
    _print(result)
    if config.out:
        config.out.parent.mkdir(parents=True, exist_ok=True)
        config.out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def make_step(name: str, family: es.Family, samples: int) -> Callable[[], Any]:
    """Draw + credit of one estimator, compiled; losses stand ready."""
    member = es.ESTIMATORS[name]
    options = {"samples": samples} if "samples" in member.options else {}
    estimator = es.make(name, family, options)
    spec = estimator.spec
    key = jax.random.key(0)
    logits = jax.random.normal(key, (family.n,))
    state = estimator.init(jax.random.key(1), logits)
    rows = jax.eval_shape(estimator.draw, key, logits, state).outcomes.shape[0]
    losses = jax.random.normal(jax.random.key(2), (rows,))
    weights_grad = slope = None
    if "path" in spec.needs:
        weights_grad = jnp.ones((rows, *family.weights_shape))
    if "probe_slope" in spec.needs:
        slope = jnp.ones(family.weights_shape)

    @jax.jit
    def step(key, logits, losses, state, slope, weights_grad):
        draw = es.ask(estimator, key, logits, state)
        told = es.tell(estimator, logits, draw, losses, state, slope, weights_grad)
        return told.logits_grad, told.state

    def run():
        return step(key, logits, losses, state, slope, weights_grad)

    jax.block_until_ready(run())  # compiles
    return run


def _objective(config: CostConfig) -> Callable[[], Any]:
    """Measured losses of ``samples`` random harnesses on one pack, jitted."""
    model = load_model(config.model)
    if config.small:
        shape = dataclasses.replace(model.config, num_layers=2)
        decoder = random_decoder(jax.random.key(0), shape)
        model = dataclasses.replace(model, decoder=decoder, config=shape)
    task = load_task(config.task, sizes=SplitSizes(config.pool, 16, 1, 1))
    slot = Exemplars.from_task(task, pool=config.pool, k=config.k, share_right=0.5)
    space = build_space(model, Harness(slot, Templates.named("short")), [task])
    packs = space.pack("train", width=config.pack_width)
    problem = Problem(model.decoder, space.table, packs, None)
    choices = space.harness.random_choices(
        config.samples, 0, 1, np.random.default_rng(0)
    )
    template = jnp.asarray([[c.template for c in choices]], jnp.int32)
    shots = jnp.asarray([[c.exemplars for c in choices]], jnp.int32)

    @jax.jit
    def losses(problem, template, shots):
        return measured_losses(
            problem, template, shots, jnp.zeros((1, 1), jnp.int32),
            jnp.ones((1,), bool), width=space.width, chunk=config.chunk,
            implementation=space.implementation,
        ).loss  # fmt: skip

    return lambda: losses(problem, template, shots)


def _quartiles(seconds: list[float]) -> dict[str, float]:
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return {"median": float(median), "low": float(low), "high": float(high)}


def _print(result: dict[str, Any]) -> None:
    objective = result["objective_seconds"]["median"]
    print(f"one objective evaluation: {1000 * objective:.1f} ms")
    for row in sorted(result["rows"], key=lambda row: -row["share"]):
        own = row["seconds"]
        print(
            f"{row['estimator']:20} {row['family']:12} {1000 * own['median']:8.3f} ms "
            f"({1000 * own['low']:.3f} to {1000 * own['high']:.3f})  "
            f"{100 * row['share']:.2f}%"
        )
    for row in result["refused"]:
        print(f"{row['estimator']:20} {row['family']:12} refused: {row['why']}")
    limit = result["config"]["limit"]
    over = [row for row in result["rows"] if not row["below_limit"]]
    print(
        f"{len(result['rows']) - len(over)} of {len(result['rows'])} cost less than "
        f"{100 * limit:g}% of one objective evaluation"
    )


if __name__ == "__main__":
    main(tyro.cli(CostConfig, description=__doc__))
