"""Policies learn from graded episodes, beside slots that learn from the likelihood."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, make_model, make_tasks

from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from experiments.simulated_model import Roll, SimulatedModel
from metaharness.errors import InputError
from metaharness.harness.call_cache import CallCache
from metaharness.harness.grading import grade_harnesses
from metaharness.harness.slots import Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.complete import Completer
from metaharness.runlog.budget import Budget, BudgetCounter
from metaharness.train import finalists, resume, summary
from metaharness.train.baselines import RANDOM_SEARCH, episode_search
from metaharness.train.compiled import compile_updates
from metaharness.train.credit import credit_losses, no_effects
from metaharness.train.deploy import mode_choices
from metaharness.train.episode_config import EpisodeConfig
from metaharness.train.finalists import DEPLOYMENT, settle_finalists
from metaharness.train.label_fit import fit_biases
from metaharness.train.loop import PHASE, fit
from metaharness.train.resume import data_digests
from metaharness.train.retry_guard import settle_retries
from metaharness.train.stage_config import GuardConfig, ScheduleConfig
from metaharness.train.state import uniform_phi

OUTPUT = (
    OutputPolicy("hashes", extract="hashes"),
    OutputPolicy("marked", extract="marked"),
    OutputPolicy("last line", extract="last_line"),
)
RETRY = (RetryPolicy("once"), RetryPolicy("twice", 2))


def make_space(**changes):
    tasks = make_tasks()[:1]
    slot = Exemplars.from_tasks(tasks, pool=4, k=2, share_right=0.5)
    harness = Harness(slot, Templates(TEMPLATES[:2]), output=OUTPUT, retry=RETRY)
    return build_space(make_model(), dataclasses.replace(harness, **changes), tasks)


def make_config(config, *, steps=24, **episodes):
    return dataclasses.replace(
        config,
        search=dataclasses.replace(
            config.search,
            warmup_steps=0,
            relaxed_steps=0,
            measured_steps=steps,
            samples=8,
        ),
        episodes=EpisodeConfig(**{"items": 4, "temperature": 1.0, **episodes}),
    )


@pytest.fixture(scope="module")
def space():
    return make_space()


@pytest.fixture(scope="module")
def writer(space):
    """Answers on its last line, half of the time; else no line at all."""
    items = space.tasks[0].train + space.tasks[0].validation
    answers = {item.question: item.answer for item in items}

    def odds(text):
        # the byte tokenizer's text holds the question between marks
        known = [a for q, a in answers.items() if f"\n{q}<|im_end|>" in text]
        known += [a for q, a in answers.items() if f"\n{q}\n=?" in text]
        return (Roll(0.5, f"so\n{known[0]}", 0.9, 4), Roll(0.5, "", 0.5, 2))

    return SimulatedModel(odds, lambda ids: space.model.tokenizer.decode(list(ids)))


@pytest.fixture(scope="module")
def settings(config):
    return make_config(config)


@pytest.fixture(scope="module")
def compiled(space, settings):
    return compile_updates(space, settings)


@pytest.fixture(scope="module")
def fitted(space, settings, compiled, writer):
    return fit(
        space, settings, counter=BudgetCounter(), writer=writer, compiled=compiled
    )


def test_each_slot_learns_from_what_it_decides(space, fitted):
    assert [row["kind"] for row in fitted.trace] == ["episodes"] * 24
    (choice,) = mode_choices(space, fitted.state)
    assert OUTPUT[choice.output].name == "last line"
    assert RETRY[choice.retry].name == "twice"  # tokens cost nothing here
    first, last = fitted.trace[0], fitted.trace[-1]
    assert last["reward"]["sum"] > first["reward"]["sum"]
    assert last["probabilities"]["output"]["sum"][2] > 0.6
    assert set(first) >= {"episode_loss", "tokens", "attempts", "tool_calls", "loss"}


def test_exemplars_still_learn_from_the_likelihood(fitted):
    assert all(row["forward_tokens"] > 0 for row in fitted.trace)
    assert fitted.trace[0]["loss"]["sum"] > 1.0  # nats, where an episode's is below 1
    moved = np.asarray(fitted.state.logits["exemplars"])
    assert np.ptp(moved) > 0


def test_each_half_of_the_update_is_traced_once(
    space, settings, compiled, writer, fitted
):
    again = fit(
        space, settings, counter=BudgetCounter(), writer=writer, compiled=compiled
    )
    assert again.trace == fitted.trace
    assert compiled.episodes._ask._cache_size() == 1
    assert compiled.episodes._tell._cache_size() == 1


@pytest.mark.slow
def test_relaxed_updates_leave_policies_as_they_are(space, settings, writer):
    """Also where an update from episodes gave them momentum."""
    search = dataclasses.replace(
        settings.search, warmup_steps=2, relaxed_steps=2, measured_steps=0
    )
    mixed = dataclasses.replace(settings, search=search)
    trace = fit(space, mixed, counter=BudgetCounter(), writer=writer).trace
    assert [row["kind"] for row in trace] == ["episodes"] * 2 + ["relaxed"] * 2
    for slot in ("output", "retry"):
        chances = [row["probabilities"][slot]["sum"] for row in trace]
        assert chances[1] == chances[2] == chances[3]
        assert slot == "retry" or chances[0] != chances[1]
    moved = [row["probabilities"]["exemplars"]["sum"] for row in trace]
    assert moved[1] != moved[2] != moved[3]


def test_retries_that_do_not_pay_are_not_deployed(space, settings, writer, fitted):
    """What the guard reads off is the difference of two measured losses."""
    (choice,) = mode_choices(space, fitted.state)
    assert RETRY[choice.retry].attempts == 2
    for price, kept in ((0.0, True), (50.0, False)):
        episodes = dataclasses.replace(settings.episodes, token_price=price)
        priced = dataclasses.replace(settings, episodes=episodes)
        counter = BudgetCounter()
        settled = settle_retries(space, priced, fitted, writer, counter=counter)
        (deployed,) = settled.choices(space)
        assert deployed == (choice if kept else choice._replace(retry=0))
        assert ("not deployed" in settled.notes[-1]) == (not kept)
        assert counter.counts(DEPLOYMENT).lm_calls > 0
    off = dataclasses.replace(priced, guards=GuardConfig(retries=False))
    same = settle_retries(space, off, fitted, writer, counter=BudgetCounter())
    assert same.choices(space) == [choice]


def test_random_search_by_episodes_spends_what_training_did(space, settings, writer):
    found = {}
    for most in (2_000, 20_000):
        counter = BudgetCounter()
        (found[most],) = episode_search(
            space, settings, writer, max_tokens=most, counter=counter, cache=None
        )
        spent = counter.counts(RANDOM_SEARCH).token_passes
        assert 0.5 * most < spent < 2 * most
        tried = found[most]
        assert len(tried.choices) == len(tried.losses)
        assert tried.best == tried.choices[int(np.argmin(tried.losses))]
    few, many = found.values()
    assert many.choices[: len(few.choices)] == few.choices
    assert len(many.choices) > 3 * len(few.choices)
    assert many.losses.min() <= few.losses.min()


def test_a_budget_ends_training_at_a_whole_update(space, settings, compiled, writer):
    counter = BudgetCounter({"train": Budget(max_calls=150)})
    stopped = fit(space, settings, counter=counter, writer=writer, compiled=compiled)
    assert "calls" in stopped.stopped and counter.counts().lm_calls <= 150 + 100
    assert 0 < len(stopped.trace) < 24
    assert int(stopped.state.step) == len(stopped.trace)


def test_calls_are_those_of_the_writer_where_no_likelihood_is_read(
    space, config, writer
):
    settings = make_config(config, steps=2, prompt_loss="episode")
    ran = []

    class Counted(SimulatedModel):
        def batches(self, requests):
            ran.extend(requests)
            return super().batches(requests)

    counted = Counted(writer._odds, writer._decode)
    counter = BudgetCounter()
    fit(space, settings, counter=counter, writer=counted)
    # the pool was encoded once, for a gate that no update of this kind reads
    pool = len(space.harness.candidates)
    assert counter.counts().lm_calls == len(ran) + pool


def test_texts_come_from_the_cache_the_second_time(
    space, settings, compiled, writer, fitted, tmp_path
):
    def run(counter):
        with CallCache(tmp_path / "calls.sqlite") as calls:
            short = dataclasses.replace(
                settings,
                search=dataclasses.replace(settings.search, measured_steps=3),
            )
            return fit(
                space,
                short,
                counter=counter,
                writer=writer,
                compiled=compiled,
                calls=calls,
            )

    first, second = BudgetCounter(), BudgetCounter()
    assert run(first).trace == run(second).trace
    written = first.counts().generated_tokens
    assert written > 0 and second.counts().generated_tokens == 0
    assert second.counts().cached_calls > first.counts().cached_calls


def test_a_schedule_without_episodes_is_refused(space, settings):
    joint = dataclasses.replace(settings, schedule=ScheduleConfig(kind="joint"))
    with pytest.raises(InputError, match="updates from episodes for output, retry"):
        fit(space, joint, counter=BudgetCounter())


def one_hot_outcomes(rng, space, rows):
    return {
        slot: jnp.asarray(
            np.stack([rng.permutation(family.n)[: family.k] for _ in range(rows)])[None]
        )
        for slot, family in space.families.items()
    }


def additive(space, outcomes, effects, noise):
    """Loss of each row: the sum of its candidates' effects, and noise."""
    loss = noise
    for slot in space.families:
        loss = loss + effects[slot][np.asarray(outcomes[slot][0])].sum(-1)
    return jnp.asarray(loss[None], jnp.float32)


@pytest.fixture(scope="module")
def credited(space, config):
    """Losses by slot under both kinds of credit, where each effect is known."""
    rng = np.random.default_rng(3)
    effects = {
        slot: rng.normal(size=family.n) * (3.0 if slot == "exemplars" else 0.3)
        for slot, family in space.families.items()
    }
    out = {}
    for credit in ("decision", "episode"):
        settings = make_config(config, credit=credit, prompt_loss="episode")
        window = no_effects(space, settings)
        rows = settings.search.samples
        step = jax.jit(
            lambda window, outcomes, loss, settings=settings: credit_losses(
                space, settings, window, outcomes, loss, loss, loss
            )
        )
        draws = []
        rng = np.random.default_rng(4)
        for _ in range(60):
            outcomes = one_hot_outcomes(rng, space, rows)
            loss = additive(space, outcomes, effects, 0.05 * rng.normal(size=rows))
            losses, window = step(window, outcomes, loss)
            draws.append((outcomes, losses))
        out[credit] = draws[40:]
    return effects, out


@pytest.mark.parametrize("slot", ["output", "retry", "template"])
def test_credit_by_decision_takes_the_other_slots_out(space, credited, slot):
    """Score-function gradients at uniform logits: the same mean, far less variance."""
    effects, out = credited
    truth = (effects[slot] - effects[slot].mean()) / len(effects[slot])
    error, gradients = {}, {}
    for credit, draws in out.items():
        found = []
        for outcomes, losses in draws:
            loss = np.asarray(losses[slot][0], float)
            picked = np.asarray(outcomes[slot][0])[:, 0]
            advantage = (loss - loss.mean()) * len(loss) / (len(loss) - 1)
            score = np.eye(len(truth))[picked] - 1 / len(truth)
            found.append((advantage[:, None] * score).mean(0))
        gradients[credit] = np.mean(found, axis=0)
        error[credit] = np.mean((np.array(found) - truth) ** 2)
    # the rows of the last 20 updates differ little from the truth
    assert error["decision"] < error["episode"] / 5
    np.testing.assert_allclose(gradients["decision"], truth, atol=0.12)


def test_credit_does_not_look_at_this_updates_losses(space, config):
    """A fit that saw them would bias the gradient."""
    settings = make_config(config, prompt_loss="episode")
    rng = np.random.default_rng(5)
    outcomes = one_hot_outcomes(rng, space, 8)
    loss = jnp.asarray(rng.normal(size=(1, 8)), jnp.float32)
    losses, window = credit_losses(
        space, settings, no_effects(space, settings), outcomes, loss, loss, 2 * loss
    )
    np.testing.assert_array_equal(losses["output"], loss)
    np.testing.assert_array_equal(losses["retry"], 2 * loss)
    assert int(window.count) == 8


@pytest.mark.slow
def test_a_deployed_choice_among_labels_gets_its_bias(config, fitted):
    """With it the gold answers of the training items are likelier than without."""
    task = make_tasks()[0]
    labels = tuple(sorted({item.answer for item in task.train}))
    policy = OutputPolicy("labels", labels=labels, constrain=True)
    space = make_space(output=(policy,), retry=())
    settings = make_config(config, steps=1)
    counter, writer = BudgetCounter(), Completer(space.model)
    trained = fit(space, settings, counter=counter, writer=writer)
    fixed, after = fit_biases(space, settings, trained, writer, counter=counter)
    (learned,) = fixed.harness.output
    assert learned.name == "labels" and len(learned.bias) == len(labels)
    assert any("Label bias of labels" in note for note in after.notes)
    (choice,) = after.choices(fixed)
    items = task.train[: settings.evaluation.train_items]
    rewards = [
        grade_harnesses(own, task, [choice], items, writer, counter=BudgetCounter())
        .table(lambda trace: trace.reward)
        .mean()
        for own in (space, fixed)
    ]
    assert rewards[1] >= rewards[0]
    off = dataclasses.replace(
        settings, episodes=dataclasses.replace(settings.episodes, label_bias=False)
    )
    same, _ = fit_biases(space, off, trained, writer, counter=counter)
    assert same.harness.output == (policy,)


def test_what_was_fitted_to_another_parser_is_not_gone_on_with(space, monkeypatch):
    model, tasks = space.model, space.tasks
    before = data_digests(model, tasks, space.harness)
    monkeypatch.setattr(resume, "parser_digest", lambda: "another")
    changed = data_digests(model, tasks, space.harness)
    assert before.keys() == changed.keys()
    assert [name for name in before if before[name] != changed[name]] == ["parser"]
    plain = dataclasses.replace(space.harness, output=())
    assert "parser" not in data_digests(model, tasks, plain)


def test_curves_keep_nats_and_rewards_apart(space, config, writer, fitted):
    """Where no likelihood is read, the loss of an update is no curve of nats."""

    def titles(found):
        return {curve.title: curve.y_label for curve in summary._curves(space, found)}

    reward = {"Reward of the drawn harnesses' episodes": "reward"}
    nats = {"Training loss of the drawn harnesses": "nats per answer"}
    assert titles(fitted) == nats | reward
    settings = make_config(config, steps=2, prompt_loss="episode")
    alone = fit(space, settings, counter=BudgetCounter(), writer=writer)
    assert titles(alone) == reward


def test_a_likeliest_harness_that_fails_is_not_deployed(
    space, settings, writer, monkeypatch
):
    """Judged by graded episodes: answers are on the last line, "marked" finds none."""
    monkeypatch.setattr(finalists, "_LEAST", 1)
    phi = uniform_phi(space)
    wrong = phi.delta["output"].at[0, 1].set(5.0)
    start = phi._replace(delta={**phi.delta, "output": wrong})
    short = make_config(settings, steps=1)
    fitted = fit(space, short, counter=BudgetCounter(), writer=writer, start=start)
    (likeliest,) = mode_choices(space, fitted.state)
    assert OUTPUT[likeliest.output].name == "marked"
    (row,) = fitted.trace
    (own,) = row["drawn"].values()
    assert np.mean([one["loss"] for one in own]) == pytest.approx(
        row["episode_loss"]["sum"]
    )
    right = {**own[0], "output": [2], "retry": [1], "loss": 0.2}
    trace = [{**row, "drawn": {"sum": [*own, right]}}]
    fitted = dataclasses.replace(fitted, trace=trace)
    counter = BudgetCounter()
    settled = settle_finalists(space, short, fitted, writer, counter=counter)
    (deployed,) = settled.choices(space)
    assert OUTPUT[deployed.output].name == "last line"
    assert counter.counts(DEPLOYMENT).lm_calls > 0
    # what was counted depends on where a run was resumed; the choice does not
    other = BudgetCounter()
    with other.phase(PHASE):
        other.add(token_forwards=10**6)
    again = settle_finalists(space, short, fitted, writer, counter=other)
    assert again.standing["sum"].num_items > 1
    assert again.standing == settled.standing
    assert other.counts(DEPLOYMENT).lm_calls == counter.counts(DEPLOYMENT).lm_calls
