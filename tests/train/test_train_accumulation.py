"""Updates in parts are updates in one; real ones are traced once and leave nothing."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, make_model, make_space, make_tasks

from metaharness import keys
from metaharness.errors import InputError
from metaharness.harness.objective import Problem
from metaharness.harness.relaxed import PoolCache
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.lora_config import LoraConfig
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item
from metaharness.train import compiled as compiled_module
from metaharness.train import parts
from metaharness.train.checks import check_parts
from metaharness.train.compiled import compile_updates
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.loop import fit
from metaharness.train.schedule import TRAINS_PHI, TRAINS_THETA, count_updates
from metaharness.train.search_config import SearchConfig
from metaharness.train.stage_config import GuardConfig, ScheduleConfig, WeightsConfig
from metaharness.train.state import init_state

PARTS = 8
STAGES = ScheduleConfig(kind="two-stage", steps=4)
JOINT = ScheduleConfig(kind="joint", steps=4)
CASES = {
    "measured": ("measured", STAGES, "sequential"),
    "relaxed": ("relaxed", STAGES, "sequential"),
    "weights": ("weights", STAGES, "sequential"),
    "joint, sequential": ("joint", JOINT, "sequential"),
    "joint, gate": ("joint", JOINT, "gate"),
}
OBJECTIVES = (
    (parts, "measured_losses"),
    (parts, "gated_losses"),
    (parts, "relaxed_losses"),
    (parts, "measured_gradient"),
    (compiled_module, "measured_losses"),
    (compiled_module, "encode_pools"),
)


def settings(schedule, through, *, accumulate):
    return TrainConfig(
        schedule=schedule,
        search=SearchConfig(
            warmup_steps=2,
            relaxed_steps=2,
            measured_steps=1,
            trust=-1,
            # credit across parts: by the fit, its slope, and by plain losses
            estimator="reinforce" if schedule == JOINT else "linear_proxy",
            samples=8 if schedule == JOINT else 4,
            relaxed_samples=2,
            pack_width=64,
            packs=PARTS // accumulate,
            accumulate=accumulate,
            window=16,
            chunk=4,
            warmup_updates=1,
            decay="cosine",
        ),
        weights=WeightsConfig(samples=1, learning_rate=0.02, through=through),
        lora=LoraConfig(rank=2, targets=("v_proj",)),
        guards=GuardConfig(validate_every=3, validation_packs=1, rollback=None),
        evaluation=EvalConfig(train_items=20, validation_items=4),
        quiet=True,
    )


def uneven(task, num):
    """The task with ``num`` training items of many lengths."""
    sign = task.train[0].question[1]
    items = tuple(
        Item(f"{task.name}-{i}", f"{i % 9}{sign}{i}" + "?" * (7 * i * i % 23), f"{i}")
        for i in range(num)
    )
    return dataclasses.replace(task, train=items)


@pytest.fixture(scope="module")
def wide():
    """A space whose packs hold 1 to 3 items; its second task has too few for 8."""
    first, second = make_tasks()
    tasks = (uneven(first, 20), uneven(second, 11))
    slot = Exemplars.from_tasks(tasks, pool=4, k=2, share_right=0.5)
    harness = Harness(slot, Templates(TEMPLATES[:2]))
    return build_space(make_model(), harness, tasks)


@pytest.fixture(scope="module")
def functions(wide):
    """Compiled updates by settings, and how often their objectives were traced."""
    traces = collections.Counter()

    def counted(place, name):
        real = getattr(place, name)

        def objective(*arguments, **static):
            traces[f"{place.__name__.split('.')[-1]}.{name}"] += 1
            return real(*arguments, **static)

        return objective

    with pytest.MonkeyPatch.context() as patch:
        for place, name in OBJECTIVES:
            patch.setattr(place, name, counted(place, name))

        @functools.cache
        def made(schedule, through, accumulate):
            own = settings(schedule, through, accumulate=accumulate)
            return compile_updates(wide, own)

        made.traces = traces
        yield made


@pytest.fixture(scope="module")
def encode(functions):
    """One encoding for all settings: it is the same function."""
    return functions(STAGES, "sequential", PARTS).encode


def state_of(space, config):
    """Neither phi nor theta as it is at the start."""
    rng = np.random.default_rng(5)

    def moved(x):
        return x + jnp.asarray(0.3 * rng.normal(size=x.shape), x.dtype)

    state = init_state(space, config, keys.root_key(1))
    theta = jax.tree.map(moved, state.theta)
    delta = jax.tree.map(moved, state.phi.delta)
    return state._replace(theta=theta, phi=state.phi._replace(delta=delta))


@pytest.fixture(scope="module")
def update(wide, functions, encode):
    packs = wide.pack("train", width=64)
    num_items = np.asarray((packs.items >= 0).sum(axis=-1))
    assert len(np.unique(num_items)) > 2 and (num_items[1, PARTS:] == 0).all()

    def run(case, accumulate):
        kind, schedule, through = CASES[case]
        config = settings(schedule, through, accumulate=accumulate)
        made = functions(schedule, through, accumulate)
        state = state_of(wide, config)
        pool = None  # not read by a joint update with sequential prompts
        if schedule != JOINT or through == "gate":
            pool = PoolCache(encode(wide.model.decoder, state.theta), made.keys)
        problem = Problem(wide.model.decoder, wide.table, packs, pool)
        state, out = made.updates[kind](state, problem, jnp.ones(2, bool))
        return state, jax.device_get(out)

    return run


def assert_close(found, expected, tolerance=1e-5):
    """Relative to the largest value."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in pairs]
    assert pairs
    largest = max(np.abs(b).max() for _, b in pairs)
    assert largest > 0
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


# What they are made of is in the others: losses with slopes, and theta's gradient.
SLOW = ("measured", "relaxed", "joint, sequential", "joint, gate")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case in SLOW else ())
        for case in CASES
    ],
)
def test_an_update_in_parts_is_the_update_in_one(update, case):
    kind, *_ = CASES[case]
    (one, whole), (two, parts) = update(case, 1), update(case, PARTS)
    np.testing.assert_array_equal(parts.template, whole.template)
    assert int(parts.calls) == int(whole.calls)
    assert_close(parts.rows, whole.rows)
    assert_close(parts.loss, whole.loss)
    assert_close(two.phi, one.phi)
    assert (whole.gated is None) == (parts.gated is None)
    if whole.gated is not None:
        assert_close(parts.gated, whole.gated)
    assert (kind in TRAINS_THETA) == (whole.theta_grad is not None)
    if kind in TRAINS_THETA:
        assert_close(parts.theta_grad, whole.theta_grad)
        for name, pair in one.theta.items():
            assert_close(two.theta[name], pair)
            # the step has the size of the rate whatever the gradient: its mean has not
            means = (x.theta_optimizer[1][0].mu[name] for x in (two, one))
            assert_close(*means)


def test_more_parts_than_rows_are_refused():
    config = settings(STAGES, "sequential", accumulate=PARTS)
    check_parts(config, PARTS)
    with pytest.raises(InputError, match="search.accumulate: expected at most 7 parts"):
        check_parts(config, PARTS - 1)
    check_parts(settings(STAGES, "sequential", accumulate=1), 1)


@pytest.fixture(scope="module")
def fitted(wide, functions):
    """A whole run of both stages in parts."""
    config = settings(STAGES, "sequential", accumulate=PARTS)
    made = functions(STAGES, "sequential", PARTS)
    return fit(wide, config, counter=BudgetCounter(), compiled=made)


@pytest.mark.slow
def test_schedules_count_updates(fitted):
    config = settings(STAGES, "sequential", accumulate=PARTS)
    kinds = [row["kind"] for row in fitted.trace]
    assert kinds == ["measured"] * 2 + ["relaxed"] * 2 + ["measured"] * 2 + [
        "weights",
        "weights",
        "measured",
    ]
    done = count_updates(config)
    assert done.phi == sum(kind in TRAINS_PHI for kind in kinds) == 7
    assert done.theta == sum(kind in TRAINS_THETA for kind in kinds) == 2
    for optimizer, num in (
        (fitted.state.phi_optimizer, done.phi),
        (fitted.state.theta_optimizer, done.theta),
    ):
        counts = [x for x in jax.tree.leaves(optimizer) if x.dtype == jnp.int32]
        assert len(counts) == 2 and all(int(count) == num for count in counts)
    assert int(fitted.state.step) == done.phi + done.theta


def test_each_function_is_traced_once_over_both_stages(wide, functions, fitted):
    made = functions(STAGES, "sequential", PARTS)
    before = dict(functions.traces)
    config = settings(STAGES, "sequential", accumulate=PARTS)
    other = dataclasses.replace(config, seed=4)
    again = fit(wide, other, counter=BudgetCounter(), compiled=made)
    assert again.trace[0]["loss"] != fitted.trace[0]["loss"]
    assert functions.traces == before
    assert set(made.updates) == {"measured", "relaxed", "weights"}
    for function in (*made.updates.values(), made.encode, made.validate):
        assert function._cache_size() == 1


@pytest.mark.slow
def test_updates_leave_nothing_behind():
    """The state's buffers are given to the next one, two hundred times."""
    space = make_space(0, templates=TEMPLATES[2:])
    config = settings(STAGES, "sequential", accumulate=PARTS)
    search = dataclasses.replace(config.search, accumulate=1, chunk=1)
    config = dataclasses.replace(config, search=search)
    step = compile_updates(space, config).updates["weights"]
    packs = space.pack("train", width=16, limit=2)
    problem = Problem(space.model.decoder, space.table, packs, None)
    active = jnp.ones(2, bool)
    state = init_state(space, config, keys.root_key(0))
    seen = {}
    for number in range(1, 201):
        given = jax.tree.leaves(state)
        state, out = step(state, problem, active)
        if number in (20, 200):
            assert all(x.is_deleted() for x in given if x.size)
            del given
            jax.block_until_ready((state, out))
            arrays = jax.live_arrays()
            seen[number] = len(arrays), sum(x.nbytes for x in arrays)
            del arrays
    assert seen[20] == seen[200]
    assert int(state.step) == 200 and float(out.theta_grad) > 0
