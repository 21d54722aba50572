"""A prompt's pieces are the tokens of the whole conversation, or it is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_space import CHATML, TEMPLATES, equal_lengths, make_tokenizer

from components.exemplars import Exemplar
from components.templates import Template
from metaharness.errors import HarnessError, WeightsError
from metaharness.harness.render import Renderer
from metaharness.model.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data/model/tiny_llama_tied"
POOL = equal_lengths(3)
CHAT = (
    Template("bare"),
    Template("asked", question="{question}\n=?"),
    Template("shown", shot="Q {question}"),
    Template("teacher", system="Be brief."),
)
PLAIN = (
    TEMPLATES[2],
    Template("told", "Q: {question}\n", "{question}\n", "You add.", chat=False),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
SOLVED = st.lists(st.tuples(TEXT, TEXT).filter(lambda p: all(map(str.strip, p))))

BYTES = make_tokenizer()
LLAMA = Tokenizer.from_folder(DATA)
# ChatML without a system turn of its own: nothing stands before the first turn.
HEADLESS = make_tokenizer(CHATML[CHATML.index("{% for") :])


def conversation(template, exemplars, question):
    turns = []
    if template.system is not None:
        turns.append(("system", template.system))
    for e in exemplars:
        turns += [
            ("user", template.shot.replace("{question}", e.question)),
            ("assistant", e.answer),
        ]
    turns.append(("user", template.question.replace("{question}", question)))
    return [{"role": role, "content": content} for role, content in turns]


def exemplars_of(pairs):
    return [Exemplar(f"e{i}", q, a) for i, (q, a) in enumerate(pairs)]


@pytest.mark.parametrize("tokenizer", [BYTES, LLAMA], ids=["chatml", "llama"])
@pytest.mark.parametrize("template", CHAT, ids=lambda t: t.name)
@given(pairs=SOLVED.map(lambda pairs: pairs[:3]), question=TEXT)
def test_chat_pieces_are_the_whole_conversation(tokenizer, template, pairs, question):
    renderer, shown = Renderer(tokenizer), exemplars_of(pairs)
    pieces = renderer.head(template)
    for exemplar in shown:
        pieces += renderer.shot(template, exemplar)
    pieces += renderer.question(template, question)
    turns = conversation(template, shown, question)
    assert pieces == tokenizer.chat_ids(turns, add_generation_prompt=True)
    assert pieces == renderer.prompt(template, shown, question)
    text = tokenizer.chat(turns, add_generation_prompt=True)
    assert renderer.prompt_text(template, shown, question) == text


@pytest.mark.parametrize("template", PLAIN, ids=lambda t: t.name)
@given(pairs=SOLVED.map(lambda pairs: pairs[:3]), question=TEXT)
def test_plain_pieces_are_the_whole_text_after_one_sink(template, pairs, question):
    text = "You add.\n\n" if template.system else ""
    for shown, answer in pairs:
        text += template.shot.replace("{question}", shown) + answer + "\n\n"
    text += template.question.replace("{question}", question)
    renderer, shown = Renderer(BYTES), exemplars_of(pairs)
    sink = BYTES.eos_ids[:1]  # this tokenizer has no beginning-of-text token
    assert renderer.prompt(template, shown, question) == [*sink, *BYTES.encode(text)]
    assert renderer.prompt_text(template, shown, question) == text


def test_a_plain_prompt_begins_with_the_beginning_of_text_once():
    renderer = Renderer(LLAMA)
    assert renderer.head(PLAIN[0]) == [LLAMA.bos_id]
    assert renderer.head(PLAIN[1]) == [LLAMA.bos_id, *LLAMA.encode("You add.\n\n")]
    spelled = Template("s", "{question}\n", "{question}\n", "<s>Add.", chat=False)
    assert renderer.head(spelled) == LLAMA.encode("<s>Add.\n\n")


@pytest.mark.parametrize("num", [0, 2])
def test_a_chat_that_begins_with_the_first_turn_gets_a_sink(num):
    renderer, template = Renderer(HEADLESS), CHAT[0]
    sink = [HEADLESS.eos_ids[0]]
    assert renderer.head(template) == sink
    turns = conversation(template, POOL[:num], "1*1")
    whole = HEADLESS.chat_ids(turns, add_generation_prompt=True)
    assert renderer.prompt(template, POOL[:num], "1*1") == sink + whole


def test_a_template_that_changes_earlier_turns_is_refused():
    numbered = CHATML.replace(
        "message['role'] }}", "message['role'] }}{{ loop.index }}"
    )
    renderer = Renderer(make_tokenizer(numbered))
    with pytest.raises(HarnessError, match="changes earlier turns"):
        renderer.head(CHAT[0])
    assert renderer.prompt(PLAIN[0], POOL, "1*1")  # plain text goes around it


def test_a_last_turn_that_depends_on_the_number_of_turns_is_refused():
    counting = CHATML[: CHATML.index("{% if add")] + (
        "{% if add_generation_prompt %}<|im_start|>assistant"
        "{% if messages | length > 2 %} again{% endif %}\n{% endif %}"
    )
    renderer = Renderer(make_tokenizer(counting))
    assert renderer.prompt(CHAT[0], (), "1*1")
    with pytest.raises(HarnessError, match="do not depend on each other"):
        renderer.prompt(CHAT[0], POOL, "1*1")


def test_a_model_without_a_chat_template_takes_plain_templates_only():
    renderer = Renderer(make_tokenizer(None))
    with pytest.raises(WeightsError, match="chat=False"):
        renderer.head(CHAT[0])
    assert renderer.prompt(PLAIN[0], POOL, "1*1")


def test_a_gold_answer_is_its_own_tokens_and_never_empty():
    renderer = Renderer(BYTES)
    assert renderer.answer("12\n") == BYTES.encode("12\n")
    with pytest.raises(HarnessError, match="gives tokens"):
        renderer.answer("")
