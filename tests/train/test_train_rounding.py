"""Losses that are equal move no logits, however large; small differences move them."""

import dataclasses

import numpy as np
import pytest
from loss_tables import patch_objectives
from tiny_space import TEMPLATES, make_model, make_tasks

from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.complete import Completer
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.compiled import compile_updates
from metaharness.train.episode_config import EpisodeConfig
from metaharness.train.episode_update import EpisodeUpdate, Graded
from metaharness.train.loop import fit

SIZES = (0.5, 1 / 3, 0.7, 5.0, 117.3)
CREDITS = ("decision", "episode")
UPDATES, ROWS = 20, 10


def make_config(config, credit="decision"):
    search = dataclasses.replace(
        config.search,
        warmup_steps=0,
        relaxed_steps=0,
        measured_steps=UPDATES,
        samples=ROWS,
        window=4 * ROWS,
    )
    episodes = EpisodeConfig(prompt_loss="episode", credit=credit)
    return dataclasses.replace(config, search=search, episodes=episodes)


@pytest.fixture(scope="module")
def episodes(config):
    """Logits after updates whose episodes have the losses of a function of the
    outcomes, slot -> int32 ``[task, row, k]``; compiles once for each kind of credit.
    """
    tasks = make_tasks()[:1]
    harness = Harness(
        Exemplars.from_tasks(tasks, pool=4, k=2, share_right=0.5),
        Templates(TEMPLATES[:2]),
        output=(
            OutputPolicy("hashes", extract="hashes"),
            OutputPolicy("last line", extract="last_line"),
        ),
        retry=(RetryPolicy("once"), RetryPolicy("twice", 2)),
    )
    space = build_space(make_model(), harness, tasks)
    made = {}

    def run(credit, losses_of):
        settings = make_config(config, credit)
        if credit not in made:
            made[credit] = compile_updates(space, settings)

        def grade(self, outcomes, *rest):
            loss = losses_of(outcomes).astype(np.float32)
            return Graded(loss, loss, *np.zeros((4, 1)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EpisodeUpdate, "_grade", grade)
            found = fit(
                space,
                settings,
                counter=BudgetCounter(),
                writer=Completer(space.model),
                compiled=made[credit],
            )
        assert [row["kind"] for row in found.trace] == ["episodes"] * UPDATES
        return {slot: np.asarray(own) for slot, own in found.state.logits.items()}

    return run


def second(outcomes, slot):
    """1 in rows where a slot drew its second candidate, else 0."""
    return outcomes[slot][..., 0]


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("size", SIZES)
def test_equal_losses_of_episodes_move_nothing(episodes, credit, size):
    moved = episodes(credit, lambda _: np.full((1, ROWS), size))
    assert set(moved) == {"exemplars", "template", "output", "retry"}
    for slot, logits in moved.items():
        assert np.abs(logits).max() < 1e-3, slot


@pytest.mark.parametrize("size", SIZES)
def test_policies_that_change_nothing_stay_where_templates_differ(episodes, size):
    moved = episodes("episode", lambda out: size + 0.7 * second(out, "template"))
    assert np.ptp(moved["template"]) > 5
    for slot in ("output", "retry", "exemplars"):
        assert np.abs(moved[slot]).max() < 1e-3, slot


@pytest.mark.parametrize("size", [1 / 3])  # each compiles its own
def test_equal_measured_losses_move_nothing(space, config, size):
    with pytest.MonkeyPatch.context() as patch:
        patch_objectives(
            patch, space, lambda template, weights: size + 0.0 * weights.sum(-1)
        )
        found = fit(space, make_config(config), counter=BudgetCounter())
    assert [row["kind"] for row in found.trace] == ["measured"] * UPDATES
    for slot, logits in found.state.logits.items():
        assert np.abs(logits).max() < 1e-3, slot


@pytest.mark.parametrize("slot", ["output", "template"])
@pytest.mark.parametrize("size", [5.0, 117.3])
def test_small_differences_move_as_far_as_large_ones(episodes, slot, size):
    """0.01 nats at 5 are as good as 1 nat at 0: gradients differ in size alone."""
    small = episodes("episode", lambda out: size + 0.01 * second(out, slot))
    large = episodes("episode", lambda out: 1.0 * second(out, slot))
    assert small[slot][0, 0] - small[slot][0, 1] > 5
    np.testing.assert_allclose(small[slot], large[slot], rtol=1e-2)
