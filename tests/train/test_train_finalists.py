"""What is deployed: the likeliest harness, unless validation knows a better one."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_space import TEMPLATES, make_space

from components.templates import Template
from metaharness.harness.scoring import score_harnesses
from metaharness.harness.slots import Choice
from metaharness.runlog.budget import BudgetCounter
from metaharness.train.attribution import seed_choice
from metaharness.train.deploy import mode_choices
from metaharness.train.finalists import (
    DEPLOYMENT,
    LIKELIEST,
    START,
    finalists,
    settle_finalists,
    stand,
)
from metaharness.train.fitted import Finalist
from metaharness.train.loop import PHASE
from metaharness.train.stage_config import GuardConfig
from metaharness.train.state import Phi


def drawn(choice, loss):
    return {"exemplars": list(choice[0]), "template": [choice[1]], "loss": loss}


@pytest.fixture(scope="module")
def truth(space):
    """Task -> (choices, mean nats on the validation items) of every harness."""
    pairs = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    out = []
    for index, task in enumerate(space.tasks):
        allowed = np.flatnonzero(space.masks["exemplars"][index])
        choices = [
            Choice(pair, template)
            for pair in pairs
            for template in (0, 1)
            if set(pair) <= set(allowed)
        ]
        scores = score_harnesses(
            space,
            task,
            choices,
            task.validation[:4],
            generate=False,
            counter=BudgetCounter(),
        )
        out.append((choices, scores.nats.mean(axis=1)))
    return out


def led_to(space, fitted, choices):
    """As after a training that made these the likeliest, and drew nothing."""
    delta = {
        slot: np.zeros(x.shape, np.float32) for slot, x in fitted.state.logits.items()
    }
    for task, choice in enumerate(choices):
        delta["exemplars"][task, list(choice.exemplars)] = 5
        delta["template"][task, choice.template] = 5
    none = {slot: jnp.zeros(x.shape[1]) for slot, x in delta.items()}
    phi = Phi(none, {slot: jnp.asarray(x) for slot, x in delta.items()})
    return dataclasses.replace(fitted, state=fitted.state._replace(phi=phi), trace=[])


@pytest.mark.parametrize(
    "table, deployed",
    [
        ([[2, 2, 2, 2], [1, 1, 1, 1]], 1),
        ([[1, 1, 1, 1], [2, 2, 2, 2]], 0),
        ([[2, 2, 2, 2], [2, 2, 2, 2]], 0),
        # gains 1, -1, 1, 0: mean .25, standard error .48
        ([[2, 2, 2, 2], [1, 3, 1, 2]], 0),
        # gains 2, 0, 1, 1: mean 1, standard error .41
        ([[2, 2, 2, 2], [0, 2, 1, 1]], 1),
        ([[2, 2, 2, 2], [1, 1, 1, 1], [0, 0, 0, 1]], 2),
        ([[np.nan, 2, 2, 2], [3, 3, 3, 3]], 1),
        ([[2, 2, 2, 2], [np.nan, 0, 0, 0]], 0),
        ([[2], [1]], 0),
        # one item makes the difference: the gain is the standard error
        *(([[1] * num, [0] + [1] * (num - 1)], 0) for num in (8, 10, 11, 30, 34)),
    ],
)
def test_the_likeliest_stands_within_one_standard_error(table, deployed):
    found = [Finalist(Choice((), at), str(at)) for at in range(len(table))]
    standing = stand(found, np.array(table, float))
    assert standing.deployed == deployed and standing.num_items == len(table[0])
    if np.isfinite(table).all() and len(table[0]) > 1:
        gains = np.subtract(table[0], table[np.argmin(standing.losses)])
        assert standing.gain == pytest.approx(gains.mean())
        error = gains.std(ddof=1) / len(gains) ** 0.5
        assert standing.error == pytest.approx(error)


def test_finalists_are_the_likeliest_the_start_and_the_best_drawn(space, ran):
    (mode, _), start = mode_choices(space, ran.first.state), seed_choice(space, 0)
    others = [
        Choice(pair, template)
        for pair in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
        for template in (0, 1)
    ]
    others = [one for one in others if one not in (mode, start)]
    turned = others[1]._replace(exemplars=others[1].exemplars[::-1])
    rows = [
        [drawn(others[0], 3.0), drawn(turned, 1.0), drawn(start, 0.1)],
        [drawn(others[1], 2.0), drawn(others[2], None), drawn(others[3], 2.5)],
    ]
    trace = [
        {"step": step, "drawn": {"sum": row}} for step, row in enumerate(rows, start=1)
    ]
    fitted = dataclasses.replace(ran.first, trace=[{"step": 0}, *trace])
    found = finalists(space, fitted, 0, 10)
    expected = [mode, start, others[1], others[3], others[0]]
    assert [one.choice for one in found] == list(dict.fromkeys(expected))
    assert found[0].name == LIKELIEST and (mode == start or found[1].name == START)
    assert found[-1].name == "a harness drawn in update 1"
    assert finalists(space, fitted, 0, 3) == found[:3]
    assert [one.name for one in finalists(space, fitted, 1, 10)][0] == LIKELIEST


def test_exemplars_that_are_not_shown_make_no_other_finalist(ran):
    templates = (TEMPLATES[0], Template("alone", exemplars=False))
    space = make_space(2, templates=templates)
    alone = [Choice(pair, 1) for pair in ((0, 2), (0, 3), (1, 2))]
    shown = Choice((1, 3), 0)
    rows = [drawn(one, 1.0 + at) for at, one in enumerate([*alone, shown])]
    fitted = led_to(space, ran.first, [Choice((0, 1), 1), Choice((4, 5), 1)])
    fitted = dataclasses.replace(fitted, trace=[{"step": 1, "drawn": {"sum": rows}}])
    found = [one.choice for one in finalists(space, fitted, 0, 4)]
    assert found == [Choice((0, 1), 1), seed_choice(space, 0), shown]


def test_half_of_what_training_spent_pays_for_the_items(space, config, ran):
    evaluation = dataclasses.replace(
        config.evaluation, validation_items=8, validation_packs=1
    )
    config = dataclasses.replace(config, evaluation=evaluation)

    def run(tokens):
        counter = BudgetCounter()
        with counter.phase(PHASE):
            counter.add(token_forwards=tokens)
        settled = settle_finalists(space, config, ran.first, None, counter=counter)
        items = [own.num_items for own in settled.standing.values()]
        spent = counter.counts(DEPLOYMENT)
        finalists = [len(own.finalists) for own in settled.standing.values()]
        assert spent.lm_calls == np.dot(items, finalists)
        return spent.token_forwards, items

    (whole, every), (least, few) = run(10**6), run(1)
    assert every == [8, 8] and max(few) < 8 and least < whole
    tried = range(2 * least, 3 * whole, whole // 5)
    costs = [run(tokens)[0] for tokens in tried]
    assert costs == sorted(costs) and costs[0] == least and costs[-1] == whole
    for tokens, cost in zip(tried, costs, strict=True):
        assert cost <= tokens / 2


def test_every_update_says_what_it_drew(ran, space):
    rows = [row for row in ran.first.trace if row["kind"] == "measured"]
    assert rows and all("drawn" not in r for r in ran.first.trace if r not in rows)
    for row in rows:
        assert set(row["drawn"]) == {"sum", "swap"}
        for index, own in enumerate(row["drawn"].values()):
            assert len(own) == 4
            mask = space.masks["exemplars"][index]
            for one in own:
                assert len(set(one["exemplars"])) == 2 and mask[one["exemplars"]].all()
                assert one["template"][0] in (0, 1) and one["loss"] > 0
        losses = [one["loss"] for own in row["drawn"].values() for one in own]
        spread = np.std(np.reshape(losses, (2, 4)), axis=1)
        assert spread == pytest.approx(list(row["spread"].values()), rel=1e-4)


def test_a_bad_likeliest_harness_is_not_deployed(space, config, ran, truth):
    ranked = [[choices[i] for i in np.argsort(nats)] for choices, nats in truth]
    best, worst = ([own[at] for own in ranked] for at in (0, -1))
    fitted = led_to(space, ran.first, worst)
    assert mode_choices(space, fitted.state) == worst
    trace = [
        {
            "step": 7,
            "drawn": {
                task.name: [drawn(one, 1.0), drawn(bad, 9.0)]
                for task, one, bad in zip(space.tasks, best, worst, strict=True)
            },
        }
    ]
    fitted = dataclasses.replace(fitted, trace=trace)
    counter = BudgetCounter()
    settled = settle_finalists(space, config, fitted, None, counter=counter)
    assert settled.choices(space) == best
    for index, (task, note) in enumerate(
        zip(space.tasks, settled.notes[-2:], strict=True)
    ):
        first = best[index] == seed_choice(space, index)
        name = START if first else "a harness drawn in update 7"
        low, high = truth[index][1].min(), truth[index][1].max()
        assert note.startswith(
            f"{task.name} deploys {name}: its loss on 4 validation items is {low:.2f}, "
            f"that of the likeliest {high:.2f} (higher by {high - low:.2f}, "
        )
    spent = counter.counts(DEPLOYMENT)
    assert spent.token_forwards == counter.counts().token_forwards > 0

    good = led_to(space, ran.first, best)
    good = dataclasses.replace(good, trace=trace)
    settled = settle_finalists(space, config, good, None, counter=BudgetCounter())
    assert settled.choices(space) == best
    assert "likeliest harness is deployed for sum, swap: " in settled.notes[-1]

    off = dataclasses.replace(config, guards=GuardConfig(finalists=1))
    counter = BudgetCounter()
    assert settle_finalists(space, off, fitted, None, counter=counter) is fitted
    assert not counter.counts().lm_calls
