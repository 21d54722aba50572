"""Scores are the plain model's, and do not depend on how the work is cut up."""

import dataclasses

import jax
import numpy as np
import pytest
from tiny_space import make_space, plain_log_probs, plain_nats

from metaharness.harness.scoring import score_harnesses
from metaharness.harness.slots import Choice
from metaharness.runlog.budget import BudgetCounter

# Zero-shot, two exemplars through a chat template, and the same as plain text.
CHOICES = (Choice((), 1), Choice((3, 0), 1), Choice((1, 2), 2))
NEW = 5


@pytest.fixture(scope="module")
def space():
    return make_space(2)


@pytest.fixture(scope="module")
def items(space):
    """Questions of different lengths."""
    return tuple(
        dataclasses.replace(item, question=item.question + "0" * (3 * at))
        for at, item in enumerate(space.tasks[0].test[:5])
    )


def score(space, items, *, task=None, counter=None, **more):
    task = task or dataclasses.replace(space.tasks[0], stop=())
    return score_harnesses(
        space,
        task,
        CHOICES,
        items,
        generate=True,
        counter=counter or BudgetCounter(),
        **more,
    )


@pytest.fixture(scope="module")
def scores(space, items):
    return score(space, items)


def prompt_of(space, choice, item):
    template, shown = space.harness.parts(choice)
    return space.renderer.prompt(template, shown, item.question)


def test_nats_and_prompt_tokens_are_those_of_the_plain_model(space, items, scores):
    answers = [space.renderer.answer(item.answer) for item in items]
    assert scores.num_answer.tolist() == [len(answer) for answer in answers]
    for h, choice in enumerate(CHOICES):
        for i, item in enumerate(items):
            prompt = prompt_of(space, choice, item)
            expected = plain_nats(space.model.decoder, prompt, answers[i])
            np.testing.assert_allclose(scores.nats[h, i], expected, rtol=1e-5)
            assert scores.prompt_tokens[h, i] == len(prompt)
    assert np.ptp(scores.nats, axis=0).min() > 0.01


def greedy_ids(space, choice, item):
    """Token by token, each from a plain pass over everything before it."""
    ids = prompt_of(space, choice, item)
    start = len(ids)
    while len(ids) < start + NEW:
        best = int(plain_log_probs(space.model.decoder, ids)[-1].argmax())
        if best in space.model.tokenizer.eos_ids:
            break
        ids.append(best)
    return ids[start:]


@pytest.fixture(scope="module")
def expected_ids(space, items):
    return [[greedy_ids(space, choice, item) for item in items] for choice in CHOICES]


def test_outputs_are_greedy_answers_of_the_plain_model(space, scores, expected_ids):
    decode = space.model.tokenizer.decode
    expected = [[decode(ids) for ids in row] for row in expected_ids]
    assert scores.outputs == expected
    assert len({text for row in expected for text in row}) > 3


def test_uneven_blocks_give_the_same(space, items, scores):
    blocks = []
    other = score(
        space,
        items,
        harnesses_at_once=2,
        items_at_once=2,
        on_progress=lambda done, total: blocks.append((done, total)),
    )
    np.testing.assert_allclose(other.nats, scores.nats, rtol=1e-5)
    assert other.outputs == scores.outputs
    assert (other.prompt_tokens == scores.prompt_tokens).all()
    assert blocks == [(done, 6) for done in range(1, 7)]  # 2 of harnesses, 3 of items


def test_rewards_are_the_scorers_of_each_text_and_its_item(space, items, scores):
    seen = []

    def scorer(text, item):
        seen.append((text, item))
        return len(text) / 10

    task = dataclasses.replace(space.tasks[0], scorer=scorer, stop=())
    graded = score(space, items, task=task)
    texts = [text for row in scores.outputs for text in row]
    assert seen == list(zip(texts, items * len(CHOICES), strict=True))
    lengths = np.array([[len(text) for text in row] for row in scores.outputs])
    np.testing.assert_allclose(graded.reward, lengths / 10)


def test_a_text_ends_before_the_first_of_its_stop_strings(space, items, scores):
    text = max((t for row in scores.outputs for t in row), key=len)
    stops = (text[3], "", text[1:3])
    task = dataclasses.replace(space.tasks[0], stop=stops)
    cut = score(space, items, task=task)
    for before, after in zip(scores.outputs, cut.outputs, strict=True):
        for whole, kept in zip(before, after, strict=True):
            ends = [whole.find(stop) for stop in stops if stop and stop in whole]
            assert kept == whole[: min(ends, default=None)]
    assert cut.outputs != scores.outputs


def test_the_counter_counts_what_was_read_and_written(
    space, items, scores, expected_ids
):
    counter = BudgetCounter()
    score(space, items, counter=counter)
    counts = counter.counts()
    assert counts.lm_calls == len(CHOICES) * len(items)
    written = sum(len(ids) for row in expected_ids for ids in row)
    assert counts.generated_tokens == written
    prefixes = [len(space.prefix_tokens(choice)) for choice in CHOICES]
    questions = scores.prompt_tokens - np.array(prefixes)[:, None]
    gold = len(CHOICES) * (scores.num_answer - 1).sum()
    read = sum(prefixes) + questions.sum()  # one block: each prefix is read once
    assert counts.token_forwards == read + gold + written


def test_sampled_answers_depend_on_the_key_alone(space, items):
    def sampled(seed, **more):
        key = jax.random.key(seed)
        return score(space, items, temperature=1.0, key=key, **more).outputs

    first = sampled(0)
    assert first == sampled(0, harnesses_at_once=3, items_at_once=2) != sampled(1)


def test_likelihood_alone_needs_no_scorer(space, items, scores):
    task = dataclasses.replace(space.tasks[0], scorer=None)
    only = score_harnesses(
        space, task, CHOICES, items, generate=False, counter=BudgetCounter()
    )
    assert only.reward is None and only.outputs is None
    np.testing.assert_allclose(only.nats, scores.nats, rtol=1e-5)
    with pytest.raises(ValueError, match="scorer"):
        score(space, items, task=task)


@pytest.mark.parametrize("missing", ["choices", "items"])
def test_nothing_to_score_is_refused(space, items, missing):
    choices = () if missing == "choices" else CHOICES
    with pytest.raises(ValueError, match="at least one"):
        score_harnesses(
            space,
            space.tasks[0],
            choices,
            () if missing == "items" else items,
            generate=False,
            counter=BudgetCounter(),
        )
