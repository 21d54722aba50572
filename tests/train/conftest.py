"""One tiny space, compiled once, and searches of it."""

import collections
from typing import NamedTuple

import pytest
from tiny_space import TEMPLATES, make_space

from metaharness.harness.space import Space
from metaharness.runlog.budget import BudgetCounter
from metaharness.train import steps
from metaharness.train.config import SearchConfig
from metaharness.train.search import Searched, search

CONFIG = SearchConfig(
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
OBJECTIVES = ("measured_losses", "gated_losses", "relaxed_losses")


class Compiled(NamedTuple):
    """Updates that have run, and how often each objective was traced for them."""

    steps: steps.Steps
    traces: dict[str, int]
    first: Searched


@pytest.fixture(scope="session")
def space() -> Space:
    made = make_space(2, templates=TEMPLATES[:2])
    pool = made.encode_pool()  # every call compiles anew
    vars(made)["encode_pool"] = lambda: pool
    return made


@pytest.fixture(scope="session")
def config() -> SearchConfig:
    return CONFIG


@pytest.fixture(scope="session")
def run_search(space, compiled):
    """A search of the space with the compiled updates."""

    def run(config=CONFIG, *, seed=0, **more) -> Searched:
        arguments = {"counter": BudgetCounter(), "steps": compiled.steps} | more
        return search(space, config, train_items=8, seed=seed, quiet=True, **arguments)

    return run


@pytest.fixture(scope="session")
def compiled(space) -> Compiled:
    """The updates after one whole search with seed 0."""
    traces = collections.Counter()

    def counted(name):
        real = getattr(steps, name)

        def objective(*arguments, **static):
            traces[name] += 1
            return real(*arguments, **static)

        return objective

    with pytest.MonkeyPatch.context() as patch:
        for name in OBJECTIVES:
            patch.setattr(steps, name, counted(name))
        made = steps.make_steps(space, CONFIG)
        first = search(
            space,
            CONFIG,
            train_items=8,
            seed=0,
            counter=BudgetCounter(),
            steps=made,
            quiet=True,
        )
        return Compiled(made, traces, first)
