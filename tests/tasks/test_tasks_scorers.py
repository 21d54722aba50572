"""Each scorer keeps to its conformance set, is total, and takes linear time."""

import json
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.choices import chosen_letter
from components.parsers import final_number
from components.schema import accepts, check_schema
from metaharness.tasks.scorers import SCORERS
from metaharness.tasks.task import Item

DATA = Path(__file__).parents[1] / "data/tasks"
ITEMS = {
    "exact": Item("1", "q", "the answer", {"answers": ["another"]}),
    "normal": Item("1", "q", "the answer", {"answers": ["another"]}),
    "f1": Item("1", "q", "the answer", {"answers": ["another"]}),
    "number": Item("1", "q", "So 12.\n#### 12"),
    "choice": Item("1", "q", "B", {"options": ["Rome", "Paris", "a", "", "x"]}),
    "schema": Item("1", "q", "", {"schema": {"items": {"enum": [[1], {}]}}}),
}
PIECES = [
    "12", "#### ", "\n", "-", "−", "$", ",", ".", "/", " ", "\\boxed{", "}",
    "\\frac{1}",
    "{2}", "the answer is ", "Answer: ", "Question: ", "B", "(B)", "(", "a", "=", "**",
    "½", "²", "٣", "e", "×10^", "[", "{", '"', "```", "1,000", ":", "Rome", "million",
    "\x00", "\ud800", "\u00a0", "10⁹",
]  # fmt: skip


def cases(name):
    lines = (DATA / f"{name}_conformance.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return rows


def by_id(case):
    return case["id"]


def gold(case):
    return Item("1", "q", f"#### {case['gold']}")


@pytest.mark.parametrize("case", cases("gsm8k"), ids=by_id)
def test_gsm8k_takes_the_number_that_the_case_says(case):
    assert final_number(case["text"]) == case["taken"], case["reason"]
    assert SCORERS["number"](case["text"], gold(case)) == case["reward"]


@pytest.mark.parametrize("case", cases("match"), ids=by_id)
def test_matches(case):
    item = Item("1", "q", case["gold"], case["meta"])
    for name in ("exact", "normal"):
        assert SCORERS[name](case["text"], item) == case[name], case["reason"]
    above, below = case["f1"]
    assert SCORERS["f1"](case["text"], item) == above / below, case["reason"]


@pytest.mark.parametrize("case", cases("choice"), ids=by_id)
def test_choices(case):
    options = case["options"]
    assert chosen_letter(case["text"], options) == case["chosen"], case["reason"]
    for letter in "ABCDE":
        score = SCORERS["choice"](case["text"], Item("1", "q", letter, case))
        assert score == (letter == case["chosen"])


@pytest.mark.parametrize("case", cases("schema"), ids=by_id)
def test_schemas(case):
    check_schema(case["schema"])
    score = SCORERS["schema"](case["text"], Item("1", "q", "", case))
    assert score == case["reward"], case["reason"]


def test_the_schema_subset_agrees_with_jsonschema():
    jsonschema = pytest.importorskip("jsonschema")
    draw = random.Random(0)
    verdicts = Counter()
    for _ in range(2000):
        schema, value = random_schema(draw, 0), random_value(draw, 0)
        check_schema(schema)
        valid = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert accepts(schema, value) == valid, (schema, value)
        verdicts[valid] += 1
    assert min(verdicts.values()) > 500


def random_value(draw, depth):
    leaves = [None, True, False, 0, 1, 0.0, 1.0, 1.5, "", "a"]
    kind = draw.randrange(10 if depth < 3 else 7)
    if kind < 7:
        return draw.choice(leaves)
    inner = [random_value(draw, depth + 1) for _ in range(draw.randrange(3))]
    return inner if kind == 7 else dict(zip("ab", inner, strict=False))


def random_schema(draw, depth):
    if draw.random() < 0.1:
        return draw.random() < 0.5
    names = ["object", "array", "string", "number", "integer", "boolean", "null"]
    schema = {
        "type": draw.choice([*names, ["object", "array"], ["integer", "null"]]),
        "enum": [random_value(draw, 2) for _ in range(3)],
        "minimum": draw.choice([0, 1, 0.5]),
        "maximum": draw.choice([1, 1.5]),
        "required": [draw.choice("abc")],
    }
    if depth < 3:
        schema["properties"] = {draw.choice("abc"): random_schema(draw, depth + 1)}
        schema["items"] = random_schema(draw, depth + 1)
        schema["additionalProperties"] = random_schema(draw, depth + 1)
    return {name: value for name, value in schema.items() if draw.random() < 0.25}


@pytest.mark.parametrize(
    "schema,said",
    [
        ({"pattern": "a+"}, "schema: expected keywords among .*, got 'pattern'"),
        ({"type": "int"}, "schema: expected a type among .*, got 'int'"),
        ({"properties": {"a": {"items": 3}}}, "schema.a.items: expected an object"),
        ({"minimum": "3"}, "schema: expected a number in 'minimum', got '3'"),
        ({"required": "a"}, "schema: expected a list of names in 'required'"),
    ],
)
def test_a_schema_beyond_the_subset_is_refused(schema, said):
    with pytest.raises(ValueError, match=said):
        check_schema(schema)


# lm-evaluation-harness, task gsm8k version 3.0: two filters, then equality of strings
# without what these patterns match.
FILTERS = {
    "strict_match": (r"#### (\-?[0-9\.\,]+)", 0),
    "flexible_extract": (r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1),
}
TABLE = {
    ("strict_match", "too low"): 150,
    ("strict_match", "too high"): 2,
    ("flexible_extract", "too low"): 82,
    ("flexible_extract", "too high"): 3,
}
TOO_HIGH = {
    "strict_match": ["g017", "g037"],
    "flexible_extract": ["g086", "g111", "g112"],
}
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")


def filtered(text, rule):
    pattern, place = FILTERS[rule]
    found = re.findall(pattern, text)
    if not found:
        return "[invalid]"
    taken = found[place]
    return (taken if isinstance(taken, str) else next(filter(None, taken))).strip()


def cleaned(text):
    for pattern in IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()


@pytest.mark.parametrize("rule", FILTERS)
def test_where_the_two_rules_of_lm_evaluation_harness_differ(rule):
    for case in cases("gsm8k"):
        right = cleaned(filtered(case["text"], rule)) == cleaned(gold(case).answer)
        assert right == case[rule], case["id"]


def test_how_many_cases_each_rule_scores_otherwise():
    table = Counter(
        (rule, "too low" if case[rule] < case["reward"] else "too high")
        for case in cases("gsm8k")
        for rule in FILTERS
        if case[rule] != case["reward"]
    )
    assert table == TABLE
    # and where: a case that moves is seen
    high = {
        rule: [case["id"] for case in cases("gsm8k") if case[rule] > case["reward"]]
        for rule in FILTERS
    }
    assert high == TOO_HIGH


def test_a_cut_of_the_official_answers_is_always_read():
    for answer in ("1,000", "$5", "-3", "0.5", "12"):
        item = Item("1", "q", f"5 + 7 = 12\n#### {answer}")
        assert SCORERS["number"](item.answer, item) == 1.0


@pytest.mark.parametrize("name", SCORERS)
@settings(max_examples=200)
@given(
    text=st.one_of(
        st.text(st.characters(codec=None)),
        st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    )
)
def test_no_text_raises_or_leaves_the_range(name, text):
    score = SCORERS[name](text, ITEMS[name])
    assert isinstance(score, float) and 0.0 <= score <= 1.0
    assert SCORERS[name](text, ITEMS[name]) == score


@pytest.mark.parametrize("name", ["f1", "number", "choice", "schema"])
@pytest.mark.parametrize("piece", [
    *PIECES, "1", "9,", "#", "####", "x####", "#### 1. a\n", "answer: 1 2 ",
    "answer is ", "\\boxed{a1", "\\boxed{1", "[{", '{"a":', "1/", "1.", "1 ", "1 1/",
    "1e", "\\", "(A", "((", "the ", "question", "^", "1,2", "\n\n", " \n", "_", "12:",
    "1,00,", "<|im_end|>", "Question: 1", "option ", "1=", "*", "10^", "1.e",
])  # fmt: skip
def test_time_is_linear_in_the_length(name, piece):
    score, item = SCORERS[name], ITEMS[name]
    for text in (piece * (200_000 // len(piece)), "1" + piece * 1000 + "a"):
        start = time.process_time()
        assert 0.0 <= score(text + "!", item) <= 1.0
        assert time.process_time() - start < 6.0


@pytest.mark.parametrize(
    "text",
    ["1" + ",234" * 50_000 + "5", "1" + ",00" * 66_000 + "!", "answer" + " " * 200_000,
     "####" + "\n" * 200_000 + "a", "1 " + "/" * 200_000, "\\frac{" + "1" * 200_000,
     "answer is" + "*" * 200_000 + "a", "1e" + "9" * 200_000, "1e" + "9" * 9,
     "1.5 x 10^" + "9" * 9, "a" * 200_000 + "####"],
)  # fmt: skip
def test_time_stays_when_a_pattern_fails_at_its_end(text):
    for name in ("number", "choice"):
        start = time.process_time()
        assert SCORERS[name](text, ITEMS[name]) == 0.0
        assert time.process_time() - start < 6.0


@pytest.mark.parametrize("text", ["word " * 40_000 + "12", "12\n" + "#" * 200_000])
def test_the_number_is_found_in_a_gigantic_text(text):
    assert SCORERS["number"](text, ITEMS["number"]) == 1.0
