"""Each guard: a run that goes wrong without it, and does not with it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loss_tables import SEQUENTIAL, additive, compile_on_tables, patch_objectives
from tiny_space import TEMPLATES, make_model, make_space, make_tasks

from estimators import Family
from metaharness.errors import TaskError
from metaharness.harness.objective import Problem
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import EXEMPLARS, build_space
from metaharness.runlog import jsonfile
from metaharness.runlog.budget import BudgetCounter
from metaharness.train import run as run_module
from metaharness.train.config import TrainConfig
from metaharness.train.deploy import mode_choices
from metaharness.train.diagnosis import diagnose
from metaharness.train.guards import (
    Verdict,
    Watch,
    entropy_bonus,
    judge,
    mask_at_random,
    out_of_patience,
)
from metaharness.train.loop import fit
from metaharness.train.stage_config import GuardConfig
from metaharness.train.state import uniform_phi

MINE = np.array([[1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]], bool)
FIRST, LAST = (np.tile(np.eye(4)[at], (2, 2)) * MINE for at in (0, 3))
# Of each task's four candidates the first is bad, and so is the first template.
HONEST = additive([[1.5, 0.0]] * 2, np.tile([3.0, 0.3, 0.6, 2.0], (2, 2)))
RIGHT = [(1, 2), (5, 6)]


def holds(which, weights):
    return jnp.einsum("trp,tp->tr", weights, which.astype(np.float32))


def overfit(template, weights):
    """The last candidate seems good to those who found the right template."""
    gain = jnp.where(template == 0, 2.0, -2.5)
    return HONEST(template, weights) + gain * holds(LAST, weights)


def truth(template, weights):
    return HONEST(template, weights) + 2.0 * holds(LAST, weights)


def breaking(template, weights):
    """The last candidate makes a loss that is not a number."""
    return jnp.where(holds(LAST, weights) > 0, jnp.nan, truth(template, weights))


def searching(config, num, guards, *, seed=0, **changed):
    settings = {"estimator": "reinforce", "samples": 16, "learning_rate": 0.2} | changed
    own = dataclasses.replace(
        config.search, warmup_steps=num, relaxed_steps=0, measured_steps=0, **settings
    )
    return dataclasses.replace(config, search=own, guards=guards, seed=seed)


def exemplars(space, fitted):
    return [choice.exemplars for choice in mode_choices(space, fitted.state)]


def deployed_loss(space, fitted):
    """What the deployed harnesses cost in truth, mean over tasks."""
    choices = mode_choices(space, fitted.state)
    weights = np.zeros((2, 1, 8), np.float32)
    for task, choice in enumerate(choices):
        weights[task, 0, list(choice.exemplars)] = 1
    template = jnp.array([[choice.template] for choice in choices])
    return float(truth(template, jnp.asarray(weights)).mean())


@pytest.fixture(scope="module")
def watched(space, config):
    """Trainings on ``overfit`` that validate on a table; updates compile once."""
    functions = {}
    with pytest.MonkeyPatch.context() as patch:

        def run(table=truth, *, num=60, counter=None, **guards):
            own = searching(config, num, GuardConfig(**guards))
            patch_objectives(patch, space, overfit, table)
            if table not in functions:
                made = compile_on_tables(space, own)
                if truth in functions:
                    made = made._replace(updates=functions[truth].updates)
                functions[table] = made
            return fit(
                space,
                own,
                counter=counter or BudgetCounter(),
                compiled=functions[table],
            )

        run.update = lambda *arguments: functions[truth].updates["measured"](*arguments)
        yield run


def test_without_validation_the_overfit_harness_is_deployed(space, watched):
    plain = watched()
    assert not plain.validations and not plain.notes
    assert exemplars(space, plain) == [(1, 3), (5, 7)]
    seen = watched(validate_every=4, rollback=None)
    assert seen.trace == plain.trace and len(seen.validations) == 16
    assert deployed_loss(space, seen) == deployed_loss(space, plain) > 4


def test_validation_goes_back_and_deploys_the_best_state(space, watched):
    counter = BudgetCounter()
    guarded = watched(validate_every=4, rollback=0.5, counter=counter)
    rows = guarded.validations
    assert [row["step"] for row in rows] == list(range(0, 61, 4))
    losses = np.array([np.mean(list(row["loss"].values())) for row in rows])
    best = np.minimum.accumulate(losses)
    assert [row["rolled_back"] for row in rows] == list(losses > best + 0.5)
    assert [row["best"] for row in rows] == pytest.approx(best)
    assert losses.max() > best[-1] + 0.5 and best[-1] < losses[0]
    assert exemplars(space, guarded) == RIGHT
    assert deployed_loss(space, guarded) == pytest.approx(best[-1])
    assert guarded.notes[-1].startswith("Validation was best after update 4 of 60")
    notes = [note.text for note in diagnose(space, guarded)]
    assert any("went back to the last good state" in note for note in notes)
    spent = counter.counts("train/validation")
    assert spent.token_passes == len(rows) * 2 * SEQUENTIAL


def test_a_return_is_whole(space, config, watched):
    """Parameters and optimiser are those of the good state; draws go on."""
    guarded = watched(validate_every=4, rollback=0.5)
    at = next(row["step"] for row in guarded.validations if row["rolled_back"])
    best = guarded.watch.best_step
    good = watched(num=best).state._replace(step=jnp.int32(at))
    kept = jax.tree.map(np.asarray, (good.phi, good.phi_optimizer))
    packs = space.pack("train", width=config.search.pack_width, limit=8)
    problem = Problem(space.model.decoder, space.table, packs, None)
    _, out = watched.update(good, problem, jnp.ones(2, bool))
    assert guarded.trace[at]["step"] == at + 1
    for slot, values in guarded.trace[at]["probabilities"].items():
        np.testing.assert_allclose(list(values.values()), out.probabilities[slot], 1e-4)
    end = guarded.state.phi, guarded.state.phi_optimizer
    jax.tree.map(np.testing.assert_array_equal, end, kept)


def test_patience_ends_a_run_that_gets_no_better(space, watched):
    patient = watched(validate_every=4, rollback=0.5, patience=3)
    assert "guards.patience" in patient.stopped and patient.watch.worse == 3
    assert len(patient.trace) == patient.watch.best_step + 12 < 60
    assert exemplars(space, patient) == RIGHT


def test_a_loss_that_is_not_a_number_goes_back(space, watched):
    rescued = watched(breaking, validate_every=4, rollback=100.0)
    bad = [row for row in rescued.validations if None in row["loss"].values()]
    assert bad and all(row["rolled_back"] for row in bad)
    assert math.isfinite(rescued.watch.best) and exemplars(space, rescued) == RIGHT


@pytest.fixture(scope="module")
def dominated(config):
    """Trainings of one exemplar that start where each task's first, bad candidate
    dominates: its chance to be chosen at the end, ``[seed, task]``."""
    space = make_space(1, templates=TEMPLATES[:2])
    logits = {EXEMPLARS: jnp.asarray(10.0 * FIRST, jnp.float32)}
    start = uniform_phi(space)
    start = start._replace(delta=start.delta | logits)

    def run(**guards):
        own = searching(config, 100, GuardConfig(**guards), samples=8, learning_rate=2)
        at_the_end = []
        with pytest.MonkeyPatch.context() as patch:
            patch_objectives(patch, space, HONEST)
            functions = compile_on_tables(space, own)
            for seed in range(3):
                fitted = fit(
                    space,
                    dataclasses.replace(own, seed=seed),
                    counter=BudgetCounter(),
                    compiled=functions,
                    start=start,
                )
                chances = fitted.trace[-1]["probabilities"][EXEMPLARS]
                at_the_end.append([chances["sum"][0], chances["swap"][4]])
        return np.array(at_the_end)

    return run


def test_a_dominating_candidate_is_not_left_without_a_guard(dominated):
    assert (dominated() > 0.99).all()


@pytest.mark.parametrize("guard", [{"mask_rate": 0.3}, {"entropy_bonus": 0.3}])
def test_a_guard_leaves_a_dominating_candidate(dominated, guard):
    assert (dominated(**guard) < 0.05).all()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_evaluated_item_in_the_pool_is_refused(split, tmp_path, monkeypatch):
    """Through ``build_space`` and through ``train``, which leaves no folder."""
    tasks = make_tasks()
    stolen = getattr(tasks[0], split)[0]
    leaky = dataclasses.replace(tasks[0], pool=(*tasks[0].pool[:3], stolen))
    harness = Harness(
        Exemplars.from_tasks((leaky, tasks[1]), pool=4, k=2, share_right=1.0),
        Templates(TEMPLATES[:1]),
    )
    model = make_model()
    with pytest.raises(TaskError, match=f"no exemplar from the {split} split"):
        build_space(model, harness, tasks, guard_leaks=True)
    assert build_space(model, harness, tasks, guard_leaks=False).num_tasks == 2

    class Reached(Exception):
        pass

    def reached(*_, **__):
        raise Reached

    monkeypatch.setattr(run_module, "fit", reached)
    config = TrainConfig(out=tmp_path / "run", quiet=True)
    with pytest.raises(TaskError, match=stolen.uid):
        run_module.train(model, tasks, harness, config)
    assert not (tmp_path / "run").exists()
    config = dataclasses.replace(config, guards=GuardConfig(leaks=False))
    with pytest.raises(Reached):
        run_module.train(model, tasks, harness, config)


def masked(rate, keep, allowed, draws):
    keys = jax.random.split(jax.random.key(3), draws)
    run = jax.jit(
        jax.vmap(lambda key: mask_at_random(key, allowed, keep=keep, rate=rate))
    )
    return np.asarray(run(keys))


@pytest.mark.parametrize("keep", [1, 3, 8])
@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_masking_keeps_enough_and_allows_nothing_new(rate, keep):
    allowed = np.array([[1] * 8, [1, 0] * 4, [0] * 7 + [1]], bool)
    out = masked(rate, keep, allowed, 300)
    assert not (out & ~allowed).any()
    least = np.minimum(keep, allowed.sum(axis=1))
    assert (out.sum(axis=-1) >= least).all()
    assert rate < 0.9 or (out.sum(axis=-1) == least).any(axis=0).all()


def test_masking_leaves_out_at_the_asked_rate():
    """The last of m candidates stays: it goes with chance rate - rate**m / m."""
    draws, rate = 20_000, 0.3
    allowed = np.array([[1] * 6 + [0] * 2, [0, 1, 1] + [0] * 5], bool)
    out = masked(rate, 1, allowed, draws)
    for row, own in zip(np.moveaxis(out, 1, 0), allowed, strict=True):
        num = own.sum()
        chance = rate - rate**num / num
        error = np.sqrt(chance * (1 - chance) / draws)
        assert np.abs(1 - row[:, own].mean(axis=0) - chance).max() < 5 * error
        both = ~row[:, own][:, :2].any(axis=1)  # independent of each other
        expected = 0.0 if num == 2 else rate**2 - 2 / num * rate**num
        error = np.sqrt(rate**2 * (1 - rate**2) / draws)
        assert abs(both.mean() - expected) < 5 * error


def test_masks_differ_between_updates_and_tasks():
    out = masked(0.5, 1, np.ones((2, 8), bool), 50)
    assert len(np.unique(out.reshape(100, 8), axis=0)) > 80


def test_the_bonus_is_the_mean_entropy_of_each_slot():
    logits = np.array([[0.0, 1.0, -2.0, 5.0], [0.3, 0.1, 0.0, 0.0]], np.float32)
    mask = np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool)
    family = Family("categorical", 4)
    weights = np.exp(logits.astype(float)) * mask
    chances = weights / weights.sum(axis=1, keepdims=True)
    logs = np.log(np.where(mask, chances, 1.0))
    expected = -(chances * logs).sum(axis=1).mean()
    families = {"a": family, "b": family}
    values, masks = ({"a": x, "b": x} for x in (jnp.asarray(logits), jnp.asarray(mask)))
    found = jax.jit(lambda values: entropy_bonus(families, masks, values))(values)
    assert float(found) == pytest.approx(2 * expected, rel=1e-5)


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("best", "loss", "rollback", "improved", "back"),
    [
        (INF, 2.0, 0.5, True, False),  # the first
        (2.0, 1.9, 0.5, True, False),
        (2.0, 2.0, 0.5, False, False),  # the earlier of two equal ones stays
        (2.0, 2.0, 0.0, False, False),
        (2.0, 2.1, 0.0, False, True),
        (2.0, 2.5, 0.5, False, False),  # up to the limit
        (2.0, 2.6, 0.5, False, True),
        (2.0, 9.0, None, False, False),
        (2.0, INF, 0.5, False, True),
        (2.0, NAN, 0.5, False, True),
        (2.0, NAN, None, False, False),
        (INF, NAN, 0.5, False, True),
    ],
)
def test_a_validation_is_judged(best, loss, rollback, improved, back):
    watch = Watch(best, 3, 2)
    verdict = judge(watch, loss, 8, GuardConfig(rollback=rollback))
    after = Watch(loss, 8, 0) if improved else Watch(best, 3, 3)
    assert verdict == Verdict(after, improved, back)


def test_patience_counts_validations_in_a_row():
    config = GuardConfig(validate_every=1, patience=2)
    assert [out_of_patience(Watch(1.0, 0, worse), config) for worse in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not out_of_patience(Watch(1.0, 0, 99), GuardConfig())


@pytest.mark.parametrize("watch", [Watch(), Watch(1.25, 7, 3), Watch(INF, 4, 2)])
def test_a_watch_comes_back_from_json(watch):
    assert Watch.from_json(jsonfile.json_safe(watch._asdict())) == watch
