"""IFEval's instructions: each says yes and no where it should, and never fails."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.format_checks import CHECKS, follows, unsupported
from components.format_counts import num_sentences
from components.languages import LANGUAGES, detect_language, may_be_english

DATA = Path(__file__).parents[1] / "data/components/format_checks.jsonl"
CASES = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
# The first article of the Universal Declaration of Human Rights, in part.
ARTICLE = json.loads((DATA.parent / "languages.json").read_text(encoding="utf-8"))
# one instruction of each kind, with arguments
SOME = {case["instruction"]: case["arguments"] for case in CASES}
PIECES = [
    "a", "A", "the ", ".", "!", " ", "\n", "\n\n", "*", "**", "***", "******", "-", '"',
    "[", "]", "<<", ">>", "```", "```json", "{", "}", ":", "P.S.", "SECTION 1", "1",
    ",", "é", "ж", "है", "。", "\x00",
]  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['instruction']} {case['reason']}"[:70]
)
def test_conformance(case):
    assert not unsupported(case["instruction"], case["arguments"])
    found = follows(case["text"], case["instruction"], case["arguments"])
    assert found is case["follows"], case["reason"]


def test_every_instruction_has_three_cases_of_each_kind():
    count = Counter((case["instruction"], case["follows"]) for case in CASES)
    assert len(CHECKS) == 25
    for name in CHECKS:
        assert count[name, True] >= 3 and count[name, False] >= 3, name


@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=60)
@given(text=st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_a_check_is_total(name, text):
    found = follows(text, name, SOME[name])
    assert type(found) is bool
    assert found is follows(text, name, SOME[name])
    assert text.strip() or not found


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_takes_linear_time(name):
    start = time.perf_counter()
    for piece in ("[", "*", ".", "<<", "\n", " ", "a. ", '"', "-\n", "SECTION ", "1."):
        follows(piece * (60_000 // len(piece)), name, SOME[name])
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("no:such", {}, "expected an instruction among"),
        ("keywords:existence", {}, "a list of texts as 'keywords', got None"),
        ("keywords:existence", {"keywords": [""]}, "a list of texts"),
        ("keywords:existence", {"keywords": "red"}, "a list of texts"),
        ("startend:end_checker", {"end_phrase": " "}, "text as 'end_phrase'"),
        (
            "length_constraints:number_words",
            {"num_words": 3, "relation": "about"},
            "'at least' or 'less than' as 'relation', got 'about'",
        ),
        (
            "length_constraints:number_words",
            {"num_words": -1, "relation": "at least"},
            "a whole number from 0",
        ),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            "one character",
        ),
        ("language:response_language", {"language": "ja"}, "as 'language', got 'ja'"),
    ],
)
def test_what_cannot_be_checked_is_named(name, arguments, expected):
    assert expected in unsupported(name, arguments)


def test_arguments_of_other_instructions_are_passed_over():
    arguments = {"num_bullets": 1, "keywords": None, "language": "xx"}
    assert not unsupported("detectable_format:number_bullet_lists", arguments)
    assert follows("* one", "detectable_format:number_bullet_lists", arguments)


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_paragraph_is_of_its_language(code):
    assert detect_language(ARTICLE[code]) == code
    assert detect_language(ARTICLE[code].upper()) == code
    assert may_be_english(ARTICLE[code]) is (code == "en")


@pytest.mark.parametrize("text", ["", "123", "日本語です", "Ελλάδα", "Hm", "the der"])
def test_where_nothing_decides_there_is_no_language(text):
    assert detect_language(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("...", 0),
        ("One", 1),
        ("One. Two? Three!", 3),
        ("One.Two", 1),
        ('He said "No." Then he left.', 2),
        ("Mr. and Mrs. Lee met Dr. J. R. Smith.", 1),
        ("At 5 p.m. it rained", 1),
        ("Wait... what", 1),
        ("Wait... What", 2),
        ("これは赤い。あれは青い。", 2),
        ("यह लाल है। वह नीला है।", 2),
        ("Do I? I do. So do I. Yes.", 4),
        ("It cost 3.5. It is 7.", 2),
    ],
)
def test_sentences(text, number):
    assert num_sentences(text) == number
