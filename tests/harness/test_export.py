"""What is exported is what the model reads, and what other programs expect."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_space import CHATML, TEMPLATES, make_tokenizer

from components.exemplars import Exemplar
from components.templates import NAMED, PLACEHOLDER, Template
from metaharness.errors import HarnessError
from metaharness.harness.export import (
    export_dspy,
    export_json,
    export_messages,
    export_text,
    instructions,
)
from metaharness.harness.learned import Learned
from metaharness.harness.render import Renderer
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.model.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
BYTES = make_tokenizer()
LLAMA = Tokenizer.from_folder(DATA / "model/tiny_llama_tied")
CHAT = (
    *TEMPLATES[:2],
    Template("shown", shot="Q {question}", question="Now: {question}", system="Be it."),
    Template("silent", system=""),
)
PLAIN = (
    TEMPLATES[2],
    Template("told", "Q: {question}\n", "{question}\n", "You add.", chat=False),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SOLVED = st.lists(
    st.tuples(TEXT, TEXT).filter(lambda pair: all(map(str.strip, pair))),
    max_size=3,
    unique=True,
)


def made(template, pairs, order=None):
    """One task, "sum", with all of ``pairs`` in the prompt."""
    pool = tuple(Exemplar(f"e{i}", q, a) for i, (q, a) in enumerate(pairs))
    order = tuple(range(len(pool))) if order is None else order
    slot = Exemplars(pool, len(pool)) if pool else None
    learned = Harness(slot, Templates((template,)))
    return Learned(learned, {"sum": Choice(order, 0)}, {}, "tiny", "ab" * 32)


def no_tokenizer():
    raise AssertionError("plain text needs no tokenizer")


def two_tasks():
    pool = tuple(Exemplar(f"e{i}", f"{i}+{i}", f"{2 * i}") for i in range(4))
    allowed = ((True, True, True, False), (False, True, True, True))
    return Learned(
        Harness(Exemplars(pool, 2, allowed), Templates(TEMPLATES)),
        {"sum": Choice((2, 0), 1), "swap": Choice((1, 3), 2)},
        {
            "exemplars": {"sum": (0.9, 0.1, 1.0, 0.0), "swap": (0.0, 0.7, 0.6, 0.7)},
            "template": {"sum": (0.1, 0.8, 0.1), "swap": (0.0, 0.25, 0.75)},
        },
        "tiny",
        "ab" * 32,
    )


@pytest.mark.parametrize("tokenizer", [BYTES, LLAMA], ids=["chatml", "llama"])
@pytest.mark.parametrize("template", CHAT, ids=lambda t: t.name)
@given(pairs=SOLVED, question=TEXT)
def test_messages_through_the_chat_template_are_the_prompt(
    tokenizer, template, pairs, question
):
    learned = made(template, pairs)
    _, exemplars = learned.parts()
    prompt = Renderer(tokenizer).prompt_text(template, exemplars, question)
    messages = export_messages(learned, None, question)
    assert tokenizer.chat(messages, add_generation_prompt=True) == prompt
    text = export_text(learned, None, question, load_tokenizer=lambda: tokenizer)
    assert text == prompt


def test_messages_word_for_word():
    shown = made(CHAT[2], [("1+1", "2"), ("2+2", "4")], order=(1, 0))
    said = [(turn["role"], turn["content"]) for turn in export_messages(shown)]
    assert said == [
        ("system", "Be it."),
        ("user", "Q 2+2"),
        ("assistant", "4"),
        ("user", "Q 1+1"),
        ("assistant", "2"),
        ("user", "Now: {question}"),
    ]
    told = made(PLAIN[1], [("1+1", "2")])
    (turn,) = export_messages(told, "sum", "3+3")
    assert turn == {"role": "user", "content": "You add.\n\n1+1\n2\n\nQ: 3+3\n"}


@pytest.mark.parametrize("template", PLAIN, ids=lambda t: t.name)
@given(pairs=SOLVED, question=TEXT)
def test_a_plain_prompt_is_one_user_message_and_needs_no_tokenizer(
    template, pairs, question
):
    learned = made(template, pairs)
    _, exemplars = learned.parts()
    prompt = Renderer(BYTES).prompt_text(template, exemplars, question)
    text = export_text(learned, None, question, load_tokenizer=no_tokenizer)
    assert text == prompt
    turn = {"role": "user", "content": prompt}
    assert export_messages(learned, None, question) == [turn]


@pytest.mark.parametrize("template", [*CHAT, *PLAIN], ids=lambda t: t.name)
def test_without_a_question_its_place_is_marked_once(template):
    learned = made(template, [("1+1", "2"), ("a {x} b", "{}")], order=(1, 0))

    def load():
        return BYTES

    text = export_text(learned, load_tokenizer=load)
    asked = export_text(learned, None, "2*3", load_tokenizer=load)
    assert text.count(PLACEHOLDER) == 1
    assert text.replace(PLACEHOLDER, "2*3") == asked
    assert asked.index("a {x} b") < asked.index("1+1") < asked.index("2*3")
    last = export_messages(learned)[-1]
    assert last["role"] == "user"
    filled = last["content"].replace(PLACEHOLDER, "2*3")
    assert filled == export_messages(learned, None, "2*3")[-1]["content"]


def test_an_exemplar_with_the_mark_in_it_needs_a_question():
    pairs = [("what is {question}?", "a mark")]
    said = "once, got it 2 times, in an exemplar as well; give the question"
    for template in (CHAT[0], PLAIN[0]):
        learned = made(template, pairs)
        with pytest.raises(HarnessError, match=said):
            export_text(learned, load_tokenizer=lambda: BYTES)
        assert export_text(learned, None, "why", load_tokenizer=lambda: BYTES)
    with pytest.raises(HarnessError, match=said):
        export_messages(made(PLAIN[0], pairs))
    # turn by turn it is clear which one is meant
    assert export_messages(made(CHAT[0], pairs))[-1]["content"] == PLACEHOLDER


def test_a_chat_whose_turns_depend_on_each_other_is_refused():
    counting = CHATML[: CHATML.index("{% if add")] + (
        "{% if add_generation_prompt %}<|im_start|>assistant"
        "{% if messages | length > 2 %} again{% endif %}\n{% endif %}"
    )
    learned = made(CHAT[0], [("1+1", "2")])
    with pytest.raises(HarnessError, match="do not depend on each other"):
        export_text(learned, load_tokenizer=lambda: make_tokenizer(counting))


def test_json_says_what_was_learned_for_each_task():
    learned = two_tasks()
    data = export_json(learned)
    assert json.loads(json.dumps(data)) == data
    assert (data["schema"], data["model"]) == ("metaharness.export/1", "tiny")
    assert data["theta_digest"] == "ab" * 32
    assert list(data["tasks"]) == ["sum", "swap"]
    assert data["tasks"]["sum"] == {
        "template": {
            "name": "result",
            "chat": True,
            "system": None,
            "shot": "{question}",
            "question": "{question}\n=?",
        },
        "exemplars": [
            {"uid": "e2", "question": "2+2", "answer": "4"},
            {"uid": "e0", "question": "0+0", "answer": "0"},
        ],
        "probabilities": {
            "exemplars": {"e0": 0.9, "e1": 0.1, "e2": 1.0},
            "template": {"bare": 0.1, "result": 0.8, "plain": 0.1},
        },
    }
    swap = export_json(learned, "swap")["tasks"]
    assert swap == {"swap": data["tasks"]["swap"]}
    assert swap["swap"]["template"]["chat"] is False
    chances = swap["swap"]["probabilities"]["exemplars"]
    assert chances == {"e1": 0.7, "e2": 0.6, "e3": 0.7}


def test_json_without_exemplars():
    (task,) = export_json(made(CHAT[0], []))["tasks"].values()
    assert task["exemplars"] == [] and task["probabilities"] == {}


def test_chances_that_do_not_fit_the_pool_are_refused():
    learned = two_tasks()
    learned.probabilities["template"]["sum"] = (1.0,)
    with pytest.raises(HarnessError, match="'template', sum: expected 3, .* got 1"):
        export_json(learned)


@pytest.mark.parametrize("export", [export_messages, export_dspy])
def test_one_of_several_tasks_has_to_be_named(export):
    learned = two_tasks()
    with pytest.raises(HarnessError, match="one of sum, swap, got none"):
        export(learned)
    assert export(learned, "sum") != export(learned, "swap")
    for function in (export, export_json):
        with pytest.raises(HarnessError, match="got 'product'"):
            function(learned, "product")


def test_dspy_state_is_what_dspy_saves():
    """The stored file was written by dspy: tests/data/harness/dspy_predict.py."""
    stored = json.loads((DATA / "harness/dspy_predict.json").read_text("utf-8"))
    pairs = [(demo["question"], demo["answer"]) for demo in stored["demos"]]
    assert len(pairs) == 2
    template = Template(
        "told",
        question="Give the number only.\nQuestion: {question}\nAnswer:",
        shot="Asked: {question}",
        system="You answer briefly.",
    )
    exported = export_dspy(made(template, pairs))
    assert exported.pop("metadata") == {"dependency_versions": {}}
    assert "dspy" in stored.pop("metadata")["dependency_versions"]
    assert exported == stored
    swapped = export_dspy(made(template, pairs, order=(1, 0)))
    assert swapped["demos"] == stored["demos"][::-1]


def test_instructions_are_the_template_without_the_question():
    found = {
        template.name: instructions(template)
        for pool in NAMED.values()
        for template in pool
    }
    assert found["bare"] == found["question_answer"] == found["plain"] == ""
    assert found["result_only"] == "Answer with the result only."
    assert found["system_line"] == "You answer with the result only, no comment."
    assert found["steps"].startswith("Work step by step.")
    assert found["continue"] == "Continue this Python file after its last line."
    told = Template("t", "Translate: {question}\nOnly the answer: short.", system="S")
    assert instructions(told) == "S\n\nTranslate:\n\nOnly the answer: short."


def test_a_harness_without_instructions_gets_those_of_dspy():
    signature = export_dspy(made(CHAT[0], []))["signature"]
    default = "Given the fields `question`, produce the fields `answer`."
    assert signature["instructions"] == default
