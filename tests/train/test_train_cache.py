"""Where theta learns, the pool is encoded when its cache says, and not more often."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_tables import additive, patch_objectives

from metaharness.harness.gradients import WithGradient
from metaharness.model.lora_config import LoraConfig
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.rundir import RunDirectory
from metaharness.train import parts
from metaharness.train.compiled import compile_updates
from metaharness.train.fitted import Fitted
from metaharness.train.journal import Journal
from metaharness.train.loop import fit
from metaharness.train.stage_config import (
    CheckpointConfig,
    ScheduleConfig,
    WeightsConfig,
)

TABLE = additive([[1.0, 0.4], [0.2, 1.2]], [[2.0, 0.2, 1.5, 0.4] * 2] * 2)
NUM_UPDATES = 8


def fake_gradient(theta, losses, coef, tokens, keys=None):
    """A loss that theta changes, by more where the keys of the pool are large."""

    def total(theta):
        size = sum(((x - 0.1) ** 2).sum() for x in jax.tree.leaves(theta))
        scale = 1.0 if keys is None else sum(jnp.abs(x).mean() for x in keys)
        loss = losses + size * scale
        return (coef * loss).sum(), loss

    grads, loss = jax.grad(total, has_aux=True)(theta)
    return loss, jnp.full((losses.shape[0],), tokens), grads


def relaxed_gradient(
    problem, adapt, theta, template, weights, packs, coef, *, exact, **static
):
    keys = None if exact else jax.tree.leaves(problem.cache.pool.context)
    losses = TABLE(template, weights)
    loss, tokens, grads = fake_gradient(theta, losses, coef, 10, keys)
    slope = jax.grad(lambda weights: (coef * TABLE(template, weights)).sum())(weights)
    return WithGradient(loss, tokens, grads, slope)


def measured_gradient(
    problem, adapt, theta, template, exemplars, packs, coef, *, width, **static
):
    weights = jax.nn.one_hot(exemplars, 8).sum(axis=2)
    loss, tokens, grads = fake_gradient(theta, TABLE(template, weights), coef, 100)
    return WithGradient(loss, tokens, grads, None)


class Ran(NamedTuple):
    """What was trained, and before which updates (from 1) the pool was encoded."""

    fitted: Fitted
    encoded: list[int]
    counter: BudgetCounter


@pytest.fixture(scope="module")
def settings(config):
    def made(kind, cache="exact"):
        through = "gate" if kind == "joint" else "sequential"
        return dataclasses.replace(
            config,
            schedule=ScheduleConfig(kind=kind, steps=NUM_UPDATES, weights_block=2),
            search=dataclasses.replace(config.search, estimator="reinforce"),
            weights=WeightsConfig(
                samples=2,
                learning_rate=0.05,
                through=through,
                cache=cache,
                refresh=3,
                warmup_updates=0,
            ),
            lora=LoraConfig(rank=2, targets=("k_proj", "v_proj")),
            checkpoint=CheckpointConfig(every=100),
        )

    return made


@pytest.fixture(scope="module")
def run(space, settings):
    """Trainings on the fake gradients; the pool is encoded by the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch_objectives(patch, space, TABLE)
        patch.setattr(parts, "relaxed_gradient", relaxed_gradient)
        patch.setattr(parts, "measured_gradient", measured_gradient)

        @functools.cache
        def functions(kind, exact):
            return compile_updates(space, settings(kind, "exact" if exact else "stale"))

        def run(kind, cache="exact", **more):
            exact = cache == "exact"
            made, encode = functions(kind, exact), functions("joint", True).encode
            encoded, done = [], [more.pop("first", 1)]

            def encoding(*arguments):
                encoded.append(done[0])
                return encode(*arguments)

            def updating(step):
                def update(*arguments):
                    done[0] += 1
                    return step(*arguments)

                return update

            made = made._replace(
                encode=encoding,
                updates={kind: updating(step) for kind, step in made.updates.items()},
            )
            counter = BudgetCounter()
            own = settings(kind, cache)
            fitted = fit(space, own, counter=counter, compiled=made, **more)
            return Ran(fitted, encoded, counter)

        yield run


@pytest.mark.parametrize(
    ("cache", "encoded"),
    [("exact", [1]), ("stopped", list(range(1, 9))), ("stale", [1, 4, 7])],
)
def test_the_pool_is_encoded_when_the_cache_says(space, run, cache, encoded):
    done = run("joint", cache)
    assert [row["kind"] for row in done.fitted.trace] == ["joint"] * NUM_UPDATES
    assert done.encoded == encoded
    # an exact update encodes for itself, forwards and backwards
    own = space.pool_tokens if cache == "exact" else 0
    for row in done.fitted.trace:
        assert row["forward_tokens"] == row["backward_tokens"] == 2 * 10 + own
    spent = done.counter.counts("train").token_forwards
    inside = NUM_UPDATES * (20 + own)
    assert spent == inside + len(encoded) * space.pool_tokens


def theta(ran):
    return [np.asarray(x) for x in jax.tree.leaves(ran.fitted.state.theta)]


def test_keys_of_another_theta_are_another_gradient(run):
    """Or the test of what a resumed run reads would test nothing."""
    stopped, stale = run("joint", "stopped"), run("joint", "stale")
    assert any(
        (a != b).any() for a, b in zip(theta(stopped), theta(stale), strict=True)
    )
    losses = [[row["loss"] for row in x.fitted.trace] for x in (stopped, stale)]
    assert losses[0][0] == losses[1][0] and losses[0][1] != losses[1][1]


def test_measured_updates_read_keys_of_their_own_theta(run):
    done = run("alternate")
    kinds = [row["kind"] for row in done.fitted.trace]
    assert kinds == ["measured", "weights", "weights"] * 2 + ["measured", "weights"]
    assert done.encoded == [1, 4, 7]


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_resumed_stale_run_is_the_whole_one(space, run, settings, tmp_path, stop):
    """Its checkpoint holds the theta that the keys belong to."""
    whole = run("joint", "stale")
    config = settings("joint", "stale")
    directory = RunDirectory.create(tmp_path / "run", config={}, provenance={})
    left = iter([False] * stop + [True])
    with Journal(directory, config) as journal:
        first = run("joint", "stale", journal=journal, should_stop=lambda: next(left))
    assert first.fitted.stopped and len(first.fitted.trace) == stop
    with Journal(directory, config, resume=True) as journal:
        resumed = run("joint", "stale", journal=journal, first=stop + 1)
    # the old keys once more, then those that a whole run encodes
    assert resumed.encoded == [stop + 1, *(at for at in (4, 7) if at > stop)]
    assert resumed.fitted.trace == whole.fitted.trace
    assert all(
        (a == b).all() for a, b in zip(theta(resumed), theta(whole), strict=True)
    )
    one, two = (x.counter.counts("train").token_passes for x in (whole, resumed))
    assert one == two
