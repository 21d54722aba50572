"""Scores of a harness: against the plain model, and beside the right baselines."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from components.exemplars import Exemplar
from components.retry_policy import RetryPolicy
from components.templates import Template
from metaharness.errors import InputError
from metaharness.harness.answer import generate
from metaharness.harness.learned import Learned
from metaharness.harness.scoring import _item_blocks, score_harnesses
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.model.decoder import run_decoder, vocabulary_logits
from metaharness.model.load import load_model
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.registry import load_task
from metaharness.train.evaluate import bare_harness, evaluate

DATA = Path(__file__).parents[1] / "data"
POOL = tuple(
    Exemplar(uid=f"e{i}", question=f"Where is box {i}?", answer=answer)
    for i, answer in enumerate(("delivery", "billing", "returns", "delivery"))
)
TEMPLATES = (
    Template("bare"),
    Template(
        "plain", question="Q: {question}\nA:\n", shot="Q: {question}\nA:\n", chat=False
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(DATA / "model/tiny_llama_tied", folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(folder)


@pytest.fixture(scope="module")
def task():
    return load_task(DATA / "cli/task.jsonl")


def plain_nats(model, ids, num_answer):
    """Summed nats of the last tokens, from one plain causal pass."""
    tokens = jnp.asarray([[ids]], jnp.int32)
    positions = jnp.arange(len(ids))[None, None]
    hidden, _ = run_decoder(model.decoder, tokens, positions, None)
    log_p = jax.nn.log_softmax(vocabulary_logits(model.decoder, hidden)[0, 0])
    at = np.arange(len(ids) - num_answer, len(ids))
    return -float(sum(log_p[i - 1, ids[i]] for i in at))


def chat_ids(model, exemplars, question):
    turns = []
    for exemplar in exemplars:
        turns.append({"role": "user", "content": exemplar.question})
        turns.append({"role": "assistant", "content": exemplar.answer})
    turns.append({"role": "user", "content": question})
    return model.tokenizer.chat_ids(turns, add_generation_prompt=True)


def test_losses_are_those_of_the_plain_model_on_the_whole_conversation(model, task):
    harness = Harness(Exemplars(POOL, 2), Templates(TEMPLATES))
    result = evaluate(
        *(model, task, harness, Choice((3, 1), 0)),
        split="validation",
        limit=2,
        random_harnesses=1,
        generate=False,
        quiet=True,
    )
    (compared,) = result.compared
    (row,) = compared.members["given harness"]
    (zero,) = compared.members["zero_shot"]
    for number, item in enumerate(task.validation[:2]):
        answer = model.tokenizer.encode(item.answer)
        for at, shown in ((row, (POOL[3], POOL[1])), (zero, ())):
            prompt = chat_ids(model, shown, item.question)
            expected = plain_nats(model, prompt + answer, len(answer))
            found = compared.scores.nats[at, number]
            np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_learned_harness_is_scored_with_its_own_tasks_candidates(model, task):
    """Two tasks were learned; candidates of the other one are never drawn."""
    other = dataclasses.replace(task, name="other")
    allowed = ((False, False, True, True), (True, True, False, False))
    harness = Harness(Exemplars(POOL, 1, allowed), Templates(TEMPLATES[:1]))
    choices = {"other": Choice((2,), 0), "task": Choice((1,), 0)}
    learned = Learned(harness, choices, {}, model.name, model.digest)
    arguments = {"limit": 2, "generate": False, "quiet": True}
    result = evaluate(model, [task, other], learned, random_harnesses=8, **arguments)
    for compared, expected in zip(result.compared, (POOL[1], POOL[2]), strict=True):
        assert len(compared.members["random"]) == 8
        assert len(compared.choices) == 3  # zero-shot and the two that are allowed
        (row,) = compared.members["mode"]
        item = task.test[0]
        answer = model.tokenizer.encode(item.answer)
        ids = chat_ids(model, (expected,), item.question) + answer
        nats = plain_nats(model, ids, len(answer))
        np.testing.assert_allclose(compared.scores.nats[row, 0], nats, rtol=1e-4)
    assert {row.task for row in result.scores} == {"task", "other", "overall"}


def test_differences_are_paired_and_counts_are_kept(model, task):
    harness = Harness(Exemplars(POOL, 2), Templates(TEMPLATES[:1]))
    result = evaluate(
        *(model, task, harness, Choice((0, 1), 0)),
        limit=3,
        random_harnesses=3,
        generate=False,
        quiet=True,
    )
    (compared,) = result.compared
    rows = {row.method: row for row in result.scores}
    nats = compared.scores.nats
    random = nats[compared.members["random"]].mean()
    given = nats[compared.members["given harness"]].mean()
    assert rows["given harness"].difference.mean == pytest.approx(given - random)
    assert rows["random"].num_harnesses == 3 and rows["random"].spread >= 0
    assert result.counts.lm_calls == 3 * len(compared.choices)
    assert result.counts.token_forwards > 0 and result.counts.seconds > 0


def test_slots_that_allow_one_harness_need_no_choice(model, task):
    harness = Harness(Exemplars(POOL[:2], 2), Templates(TEMPLATES[:1]))
    result = evaluate(model, task, harness, limit=1, generate=False, quiet=True)
    assert {row.method for row in result.scores} == {"zero_shot", "given harness"}
    bare = evaluate(model, task, bare_harness(), limit=1, generate=False, quiet=True)
    (row,) = bare.scores  # it is the zero-shot prompt: said once
    assert row.method == "zero_shot"
    assert row.loss.mean == pytest.approx(result.scores[0].loss.mean, rel=1e-5)


def test_the_first_candidates_of_slots_are_the_default_harness(model, task):
    harness = Harness(
        Exemplars(POOL, 2), Templates(TEMPLATES), retry=tuple(map(RetryPolicy, "ab"))
    )
    arguments = {"limit": 2, "generate": False, "quiet": True}
    result = evaluate(model, task, harness, random_harnesses=2, **arguments)
    assert {r.method for r in result.scores} == {"zero_shot", "default", "random"}
    (compared,) = result.compared
    (row,) = compared.members["default"]
    assert compared.choices[row] == Choice((0, 1), 0)
    item = task.test[0]
    answer = model.tokenizer.encode(item.answer)
    ids = chat_ids(model, POOL[:2], item.question) + answer
    nats = plain_nats(model, ids, len(answer))
    np.testing.assert_allclose(compared.scores.nats[row, 0], nats, rtol=1e-4)
    given = evaluate(
        *(model, task, harness, Choice((3, 1), 1)), random_harnesses=0, **arguments
    )
    assert {r.method for r in given.scores} == {"zero_shot", "given harness"}


def test_a_default_harness_that_is_the_zero_shot_prompt_is_said_once(model, task):
    harness = Harness(None, Templates(TEMPLATES))
    arguments = {"limit": 1, "generate": False, "quiet": True}
    result = evaluate(model, task, harness, random_harnesses=0, **arguments)
    assert [row.method for row in result.scores] == ["zero_shot"]
    told = Harness(None, Templates((Template("told", "Say it. {question}"),)))
    for own, method in ((told, "given harness"), (harness, "default")):
        own = dataclasses.replace(own, retry=(RetryPolicy("once"),) * (own is harness))
        result = evaluate(model, task, own, random_harnesses=0, **arguments)
        assert [row.method for row in result.scores] == [method]
    asked = evaluate(
        *(model, task, harness, Choice((), 0)), random_harnesses=0, **arguments
    )
    assert {row.method for row in asked.scores} == {"zero_shot", "given harness"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"split": "train"}, "validation or test, got 'train'"),
        ({"limit": 0}, "limit >= 1"),
        ({"random_harnesses": -1}, "random_harnesses >= 0"),
    ],
)
def test_what_cannot_be_scored_is_refused(model, task, changed, said):
    harness = Harness(Exemplars(POOL, 2), Templates(TEMPLATES))
    with pytest.raises(InputError, match=said):
        evaluate(model, task, harness, **changed)


def test_a_learned_harness_takes_no_second_choice(model, task):
    harness = Harness(None, Templates(TEMPLATES))
    learned = Learned(harness, {"task": Choice((), 1)}, {}, model.name, model.digest)
    with pytest.raises(InputError, match="leave it out"):
        evaluate(model, task, learned, Choice((), 0))


@pytest.mark.parametrize("template", [0, 1])
def test_generate_writes_what_the_evaluation_grades(model, task, template):
    harness = Harness(Exemplars(POOL, 2), Templates(TEMPLATES))
    choice = Choice((2, 0), template)
    learned = Learned(harness, {"task": choice}, {}, model.name, model.digest)
    result = evaluate(model, task, learned, limit=2, random_harnesses=0, quiet=True)
    (compared,) = result.compared
    (row,) = compared.members["mode"]
    for number, item in enumerate(task.test[:2]):
        answer = generate(
            model, item.question, learned, max_new_tokens=task.max_new_tokens
        )
        assert answer.text.split("\n")[0] == compared.scores.outputs[row][number]
        assert item.question in answer.prompt


def test_generate_asks_which_task_where_there_are_several(model):
    harness = Harness(None, Templates(TEMPLATES))
    choices = {"a": Choice((), 0), "b": Choice((), 1)}
    learned = Learned(harness, choices, {}, model.name, model.digest)
    with pytest.raises(InputError, match="expected one of a, b"):
        generate(model, "Hello", learned)
    with pytest.raises(InputError, match="expected text"):
        generate(model, "  ")
    plain = generate(model, "Hello", learned, task="b", max_new_tokens=3)
    assert "Q: Hello\nA:\n" in plain.prompt


def test_sampled_answers_depend_on_the_seed_alone(model):
    texts = [
        generate(model, "Hello", max_new_tokens=8, temperature=1.0, seed=seed).text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.slow
def test_scores_do_not_depend_on_how_items_are_blocked(model, task):
    """Long and short items, in blocks of their own or padded to one width."""
    harness = Harness(Exemplars(POOL, 2), Templates(TEMPLATES))
    space = build_space(model, harness, [task])
    items = [
        dataclasses.replace(
            item, question=" ".join([item.question] * (1 + 3 * (i % 2)))
        )
        for i, item in enumerate(task.train + task.test)
    ]
    choices = [Choice((0, 1), 1), Choice((3, 2), 0), Choice((), 0)]
    found = [
        score_harnesses(
            space,
            task,
            choices,
            items,
            generate=True,
            counter=BudgetCounter(),
            tokens_at_once=tokens,
        )
        for tokens in (10**6, 500)
    ]
    np.testing.assert_allclose(found[0].nats, found[1].nats, rtol=1e-4)
    assert found[0].outputs == found[1].outputs
    np.testing.assert_array_equal(found[0].prompt_tokens, found[1].prompt_tokens)


def test_items_of_similar_length_share_a_block():
    questions, answers = [100, 10, 90, 12, 11, 95], [50, 5, 50, 9, 5, 40]
    blocks = _item_blocks(questions, answers, 64, 450)
    assert [sorted(block.members) for block in blocks] == [[1, 3, 4], [0, 2, 5]]
    assert [(b.size, b.width, b.answer_width) for b in blocks] == [
        (3, 32, 12),
        (3, 128, 64),
    ]
    (whole,) = _item_blocks(questions, answers, 64, 10**6)
    assert sorted(whole.members) == list(range(6)) and whole.width == 128
    assert len(_item_blocks(questions, answers, 2, 10**6)) == 3
    assert len(_item_blocks([500], [20], 64, 10)) == 1
