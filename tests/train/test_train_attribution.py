"""What brought the gain: effects known exactly, nothing scored twice, real weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import CONFIG as SHAPE
from tiny_space import make_decoder, plain_log_probs, plain_nats

from metaharness.harness.scoring import Scores
from metaharness.harness.slots import Choice
from metaharness.model.lora import init_lora, merge_lora, with_lora
from metaharness.model.lora_config import LoraConfig
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import EFFECTS
from metaharness.stats import Interval, proportion_interval
from metaharness.train import attribution as module
from metaharness.train import compare
from metaharness.train.attribution import attribute, seed_choice
from metaharness.train.config import EvalConfig
from metaharness.train.divergence import AnswerDivergence

CONFIG = EvalConfig(test_items=6, validation_items=5, harnesses_at_once=2)
SEEDS = [Choice((0, 1), 0), Choice((4, 5), 0)]
LEARNED = [Choice((1, 3), 1), Choice((4, 7), 1)]
# What each change brings in the made-up scores, in nats: exact in binary.
HARNESS, WEIGHTS, BOTH = -2.0, -0.75, 0.5
SHOTS = -1.5  # the exemplars' part of HARNESS, the template has the rest
HARD = np.array([0.0, 40, 3, 80, 7, 1])  # what makes an item hard, in every cell
LORA = LoraConfig(rank=2, alpha=2)


@pytest.fixture(scope="module")
def adapted():
    return make_decoder()


@pytest.fixture
def calls(monkeypatch, adapted):
    """Replaces the model: losses are sums of known effects; answers of "sum" exact."""
    calls = []

    def fake(space, task, choices, items, **more):
        on = space.model.decoder is adapted
        calls.append((task.name, on, list(choices), tuple(items), more))
        seed = SEEDS[task.name == "swap"]
        nats, hits = [], []
        for choice in choices:
            shots = choice.exemplars != seed.exemplars
            full = shots and choice.template != seed.template
            harness = SHOTS * shots + (HARNESS - SHOTS) * (choice.template > 0)
            nats.append(HARD + harness + WEIGHTS * on + BOTH * (on and full))
            hits.append(np.arange(6) < 1 + shots + 2 * on)
        more["counter"].add(lm_calls=1)
        more["on_progress"](1, 1)
        reward = np.array(hits) * 0.995 if more["generate"] else None
        nats = np.array(nats)[:, : len(items)]
        return Scores(nats, np.full(len(items), 2), reward, None, nats.astype(int))

    def no_model(space, packs, counter):
        def measure(decoder, task, choice, on_progress):
            assert decoder is adapted
            num = CONFIG.validation_items
            nats = np.arange(1.0, num + 1) * (1 + task)
            return AnswerDivergence(nats, np.arange(num) + 2 * (1 + task))

        return measure

    monkeypatch.setattr(compare, "score_harnesses", fake)
    monkeypatch.setattr(module, "make_divergence", no_model)
    return calls


def run(space, decoder, config=CONFIG, **changed):
    arguments = {
        "seed_choices": SEEDS,
        "learned": LEARNED,
        "config": config,
        "seed": 0,
        "counter": BudgetCounter(),
        "quiet": True,
    }
    return attribute(space, decoder, **arguments | changed)


def exactly(value):
    return Interval(value, value, value)


EXPECTED = {
    "harness_at_base": HARNESS,
    "weights_at_seed": WEIGHTS,
    "harness_against_weights": HARNESS - WEIGHTS,
    "harness_at_adapted": HARNESS + BOTH,
    "weights_at_learned": WEIGHTS + BOTH,
    "total": HARNESS + WEIGHTS + BOTH,
    "interaction": BOTH,
}


def test_effects_of_made_up_scores_are_exact_and_paired(space, calls, adapted):
    # Items differ by 80 nats, effects not at all: paired intervals have no width.
    found = run(space, adapted)
    assert [row.task for row in found] == ["sum", "swap", "overall"]
    assert [row.num_items for row in found] == [6, 6, 12]
    assert list(EXPECTED) == list(EFFECTS)
    for row in found:
        got = {effect.name: effect.loss for effect in row.effects}
        assert got == {name: exactly(value) for name, value in EXPECTED.items()}
        means = {(c.weights, c.harness): c.loss.mean for c in row.cells}
        start = HARD.mean()
        assert means == pytest.approx(
            {
                ("base", "seed"): start,
                ("base", "learned"): start + HARNESS,
                ("adapted", "seed"): start + WEIGHTS,
                ("adapted", "learned"): start + HARNESS + WEIGHTS + BOTH,
            }
        )
        wide = row.cell("base", "seed").loss
        assert wide.high - wide.low > 20
        assert {s.slot: s.loss for s in row.slots} == {
            "exemplars": exactly(SHOTS + BOTH),
            "template": exactly(HARNESS - SHOTS + BOTH),
        }
        assert not any(slot.same_choice for slot in row.slots)


def test_exact_match_has_shares_and_paired_differences(space, calls, adapted):
    for row in run(space, adapted):
        num = row.num_items
        expected = {
            ("base", "seed"): 1,
            ("base", "learned"): 2,
            ("adapted", "seed"): 3,
            ("adapted", "learned"): 4,
        }
        assert {(c.weights, c.harness): c.exact_match for c in row.cells} == {
            cell: proportion_interval(hits * num // 6, num)
            for cell, hits in expected.items()
        }
        assert row.effect("total").exact_match.mean == pytest.approx(3 / 6)
        interaction = row.effect("interaction").exact_match  # items differ, not shares
        assert interaction.low < interaction.mean == 0 < interaction.high
        assert [slot.exact_match.mean for slot in row.slots] == pytest.approx(
            [1 / 6, 0]
        )
    without = dataclasses.replace(CONFIG, generate=False)
    for row in run(space, adapted, without):
        parts = (*row.cells, *row.effects, *row.slots)
        assert all(part.exact_match is None for part in parts)


def test_cells_are_scored_once_on_the_first_test_items(space, calls, adapted):
    run(space, adapted)
    assert [call[:2] for call in calls] == [
        (task, on) for task in ("sum", "swap") for on in (False, True)
    ]
    for name, on, choices, items, more in calls:
        task = [task.name for task in space.tasks].index(name)
        assert items == space.tasks[task].test[:6] and more["generate"]
        start, end = SEEDS[task], LEARNED[task]
        back = [Choice(start.exemplars, 1), Choice(end.exemplars, 0)]
        assert sorted(choices) == sorted([start, end, *(back if on else [])])


def test_equal_weights_and_choice_are_scored_once(space, calls, adapted):
    only_shots = [one._replace(template=0) for one in LEARNED]
    rows = run(space, adapted, learned=only_shots)
    for name, _, choices, *_ in calls:
        # without its exemplars the learned harness is the seed's
        task = ("sum", "swap").index(name)
        assert sorted(choices) == sorted([SEEDS[task], only_shots[task]])
    for row in rows:
        shots, template = row.slots
        assert not shots.same_choice and shots.loss == exactly(SHOTS)
        assert template.same_choice and template.loss == exactly(0.0)
    calls.clear()
    for row in run(space, adapted, learned=SEEDS):
        assert all(slot.same_choice for slot in row.slots)
        for name in ("harness_at_base", "harness_at_adapted", "interaction"):
            assert row.effect(name).loss == exactly(0.0)
        assert row.effect("total") == dataclasses.replace(
            row.effect("weights_at_seed"), name="total"
        )
    assert [(call[0], call[2]) for call in calls] == [
        (task, [choice])
        for task, choice in zip(("sum", "swap"), SEEDS, strict=True)
        for _ in range(2)
    ]


@pytest.mark.parametrize("how", ["none", "the base itself"])
def test_without_trained_weights_only_the_base_row_is_scored(space, calls, how):
    given = None if how == "none" else space.model.decoder
    for row in run(space, given):
        assert {c.weights for c in row.cells} == {"base"} and len(row.cells) == 2
        assert [e.name for e in row.effects] == ["harness_at_base"]
        assert row.effects[0].loss == exactly(HARNESS)
        assert [s.loss.mean for s in row.slots] == [SHOTS, HARNESS - SHOTS]
        assert row.divergence is None
    assert [call[:2] for call in calls] == [("sum", False), ("swap", False)]


def test_a_task_that_kept_its_slot_counts_as_zero_in_all_together(
    space, calls, adapted
):
    learned = [LEARNED[0], LEARNED[1]._replace(exemplars=SEEDS[1].exemplars)]
    first, second, overall = run(space, adapted, learned=learned)
    assert second.slots[0].same_choice and not first.slots[0].same_choice
    assert not overall.slots[0].same_choice
    assert overall.slots[0].loss.mean == pytest.approx((SHOTS + BOTH) / 2)


def test_divergence_is_a_mean_over_tokens_and_pools_them(space, calls, adapted):
    first, second, overall = run(space, adapted)
    assert first.divergence.kl.mean == pytest.approx(15 / 20)
    assert second.divergence.kl.mean == pytest.approx(30 / 30)
    assert overall.divergence.kl.mean == pytest.approx(45 / 50)
    assert (overall.divergence.num_items, overall.divergence.num_tokens) == (10, 50)
    assert first.divergence.kl.low < 15 / 20 < first.divergence.kl.high


def test_one_task_has_no_overall_row_and_one_item_no_interval(space, calls, adapted):
    alone = dataclasses.replace(space, tasks=space.tasks[:1])
    config = dataclasses.replace(CONFIG, test_items=1, generate=False)
    learned = [LEARNED[0]._replace(template=0)]
    (row,) = run(alone, adapted, config, seed_choices=SEEDS[:1], learned=learned)
    assert row.num_items == 1 and np.isnan(row.effect("total").loss.low)
    assert row.slots[1].loss == exactly(0.0)  # the same choice needs no item


def test_ctrl_c_is_the_caller_s_and_what_was_spent_is_counted(
    space, calls, adapted, monkeypatch
):
    fake, counter = compare.score_harnesses, BudgetCounter()

    def breaking(space, task, *arguments, **more):
        if task.name == "swap":
            raise KeyboardInterrupt
        return fake(space, task, *arguments, **more)

    monkeypatch.setattr(compare, "score_harnesses", breaking)
    with pytest.raises(KeyboardInterrupt):
        run(space, adapted, counter=counter)
    assert counter.counts("attribution").lm_calls == 2
    counter.add(lm_calls=1)
    assert counter.counts("attribution").lm_calls == 2, "the phase stayed open"


def test_choices_and_weights_that_do_not_fit_are_refused(space, adapted):
    with pytest.raises(ValueError, match="learned: expected 2 choices, one a task"):
        run(space, adapted, learned=LEARNED[:1])
    with pytest.raises(ValueError, match="seed_choices: expected 2 choices.* got 0"):
        run(space, adapted, seed_choices=[])
    other = dataclasses.replace(SHAPE, num_layers=1)
    other = dataclasses.replace(space.model, config=other)
    with pytest.raises(ValueError, match="adapted: expected a decoder of the shape"):
        run(dataclasses.replace(space, model=other), adapted)


def test_seed_choice_is_the_first_of_every_pool(space):
    assert [seed_choice(space, task) for task in range(2)] == SEEDS
    bare = dataclasses.replace(
        space, harness=dataclasses.replace(space.harness, exemplars=None)
    )
    assert seed_choice(bare, 0) == Choice((), 0)


def theta(scale):
    rng = np.random.default_rng(3)
    return {
        name: pair._replace(
            b=jnp.asarray(scale * rng.normal(size=pair.b.shape), jnp.float32)
        )
        for name, pair in init_lora(jax.random.key(0), LORA, SHAPE).items()
    }


def test_an_adapter_that_changes_nothing_has_equal_cells_and_no_divergence(space):
    config = dataclasses.replace(CONFIG, generate=False, test_items=3)
    for row in run(space, with_lora(space.model.decoder, theta(0.0), LORA), config):
        for harness in ("seed", "learned"):
            base, other = (row.cell(w, harness).loss for w in ("base", "adapted"))
            assert base == other
        for name in ("weights_at_seed", "weights_at_learned", "interaction"):
            assert row.effect(name).loss == exactly(0.0)
        assert row.effect("total").loss == row.effect("harness_at_base").loss
        assert row.divergence.kl == exactly(0.0)


def plain_kl(space, decoder, choice, items):
    """Mean KL to the base over all answer tokens, from whole vocabularies."""
    template, shown = space.harness.parts(choice)
    nats = []
    for item in items:
        prompt = space.renderer.prompt(template, shown, item.question)
        answer = space.renderer.answer(item.answer)
        at = np.arange(len(prompt) - 1, len(prompt) + len(answer) - 1)
        log_p, log_q = (
            plain_log_probs(model, [*prompt, *answer])[at].astype(float)
            for model in (decoder, space.model.decoder)
        )
        nats.extend((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))
    return np.mean(nats)


def test_real_weights_have_the_plain_model_s_losses_and_are_counted(space, monkeypatch):
    monkeypatch.setattr(module, "_PACK_WIDTH", 40)  # several blocks, the last one short
    decoder = merge_lora(space.model.decoder, theta(0.5), LORA)
    config = dataclasses.replace(CONFIG, generate=False, test_items=3)
    counter = BudgetCounter()
    rows = run(space, decoder, config, counter=counter)
    for task, row in zip(space.tasks, rows, strict=False):
        place = space.tasks.index(task)
        weights = {"base": space.model.decoder, "adapted": decoder}
        choices = {"seed": SEEDS[place], "learned": LEARNED[place]}
        for cell in row.cells:
            template, shown = space.harness.parts(choices[cell.harness])
            nats = [
                plain_nats(
                    weights[cell.weights],
                    space.renderer.prompt(template, shown, item.question),
                    space.renderer.answer(item.answer),
                )
                for item in task.test[:3]
            ]
            assert cell.loss.mean == pytest.approx(np.mean(nats), rel=1e-4)
        assert row.effect("total").loss.mean != pytest.approx(0, abs=1e-3)
        assert row.divergence.kl.mean == pytest.approx(
            plain_kl(space, decoder, LEARNED[place], task.validation[:5]), rel=1e-4
        )
        assert row.divergence.kl.low > 0 and row.divergence.num_items == 5
    scored, kl = 2 * (2 + 4) * 3, 2 * 2 * 5  # harnesses x items; both weights x items
    assert counter.counts("attribution").lm_calls == scored + kl
    assert counter.phases() == ("", "attribution")
