"""One tiny space, compiled once, and searches of it."""

import collections
from typing import NamedTuple

import pytest
from tiny_space import TEMPLATES, make_space

from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.train import compiled as compiled_module
from metaharness.train import parts
from metaharness.train.config import EvalConfig, TrainConfig
from metaharness.train.fitted import Fitted
from metaharness.train.loop import fit
from metaharness.train.search_config import SearchConfig

SEARCH = SearchConfig(
    warmup_steps=2,
    relaxed_steps=2,
    measured_steps=2,
    trust=-1,
    samples=4,
    relaxed_samples=2,
    pack_width=64,
    packs=2,
    window=16,
    chunk=4,
)
EVALUATION = EvalConfig(
    train_items=8,
    validation_items=4,
    validation_packs=2,
    test_items=3,
    random_harnesses=2,
    sampled_harnesses=1,
)
CONFIG = TrainConfig(search=SEARCH, evaluation=EVALUATION, quiet=True)
OBJECTIVES = ("measured_losses", "gated_losses", "relaxed_losses")


class Ran(NamedTuple):
    """Functions that have run, how often each objective was traced for them."""

    functions: compiled_module.Compiled
    traces: dict[str, int]
    first: Fitted


@pytest.fixture(scope="session")
def space() -> Space:
    return make_space(2, templates=TEMPLATES[:2])


@pytest.fixture(scope="session")
def config() -> TrainConfig:
    return CONFIG


@pytest.fixture(scope="session")
def run_fit(space, ran):
    """A training of the space with the compiled updates."""

    def run(config=CONFIG, **more) -> Fitted:
        arguments = {"counter": BudgetCounter(), "compiled": ran.functions} | more
        return fit(space, config, **arguments)

    return run


@pytest.fixture(scope="session")
def ran(space) -> Ran:
    """The updates after one whole training of the harness with seed 0."""
    traces = collections.Counter()

    def counted(name):
        real = getattr(parts, name)

        def objective(*arguments, **static):
            traces[name] += 1
            return real(*arguments, **static)

        return objective

    with pytest.MonkeyPatch.context() as patch:
        for name in OBJECTIVES:
            patch.setattr(parts, name, counted(name))
        made = compiled_module.compile_updates(space, CONFIG)
        first = fit(space, CONFIG, counter=BudgetCounter(), compiled=made)
        return Ran(made, traces, first)
