"""Policies: each extraction rule, what is refused when built, protocols, context."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.context_policy import ContextPolicy
from components.extraction import EXTRACTORS, extract, parser_digest
from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from components.tool_policy import ToolPolicy
from components.tool_protocol import PROTOCOLS
from components.tools import ToolCall, ToolSpec

LABELS = ("yes", "no", "no idea")


@pytest.mark.parametrize(
    ("rule", "text", "answer"),
    [
        ("whole", "  two\nlines ", "two\nlines"),
        ("whole", " \n", None),
        ("first_line", "\n\n a \n b", "a"),
        ("last_line", "a\n b \n\n", "b"),
        ("last_line", "", None),
        ("marked", "So the answer is: 7.", "7"),
        ("marked", "Answer: 3\nno, answer: 4 apples", "4 apples"),
        ("marked", "I answered", None),
        ("hashes", "work\n#### 42", "42"),
        ("hashes", "#### 1\nthen #### 2", "2"),
        ("hashes", "### 42", None),
        ("boxed", r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} or \boxed{2}", "2"),
        ("boxed", r"\boxed{1", None),
        ("number", "It is 1,250.50 dollars", "1250.5"),
        ("number", "none", None),
        ("json", '```json\n{"a": 1}\n```', '{"a": 1}'),
        ("json", "{a: 1}", None),
        ("code", "```python\nx = 1\n```\nand\n```\ny\n```", "x = 1"),
        ("code", "x = 1", None),
        ("label", "I have no idea.", "no idea"),
        ("label", "No, yes", "no"),
        ("label", "nothing", None),
    ],
)
def test_each_rule_finds_what_it_says(rule, text, answer):
    assert extract(rule, text, LABELS) == answer


@given(st.text(), st.sampled_from(sorted(EXTRACTORS)))
def test_extraction_is_total_and_never_empty(text, rule):
    assert extract(rule, text, LABELS) != ""


def test_checks_refuse_or_only_count():
    policy = {"pattern": r"\d+"}
    strict, lenient = (
        OutputPolicy("a", **policy),
        OutputPolicy("b", strict=False, **policy),
    )
    assert strict.parse("7") == ("7", "")
    assert (
        strict.parse("x").answer is None and "must match" in strict.parse("x").problem
    )
    assert lenient.parse("x") == ("x", "")
    schema = OutputPolicy("c", extract="json", schema={"type": "object"})
    assert schema.parse('{"a": 1}').problem == ""
    assert "must satisfy" in schema.parse("[1]").problem
    closed = OutputPolicy("d", labels=("yes", "no"))
    assert "one of: yes, no" in closed.parse("maybe").problem
    assert "boxed" in OutputPolicy("e", extract="boxed").parse("7").problem


def test_a_bias_moves_the_choice():
    policy = OutputPolicy("a", labels=("x", "y"), constrain=True)
    assert policy.choose((1.0, 2.0))[0] == "x"
    biased = OutputPolicy("a", labels=("x", "y"), constrain=True, bias=(0.0, 2.0))
    label, share = biased.choose((1.0, 2.0))
    assert label == "y" and share == pytest.approx(1 / (1 + 2.718281828**-1))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: OutputPolicy(" "), "expected a name"),
        (lambda: OutputPolicy("a", extract="best"), "expected extract among"),
        (lambda: OutputPolicy("a", pattern="("), "regular expression"),
        (lambda: OutputPolicy("a", schema={"$ref": "x"}), "expected keywords"),
        (lambda: OutputPolicy("a", extract="label"), "two labels or more"),
        (lambda: OutputPolicy("a", labels=("x", "x")), "different labels"),
        (
            lambda: OutputPolicy("a", labels=("x", "y"), constrain=True, bias=(1.0,)),
            "a bias for each of 2",
        ),
        (
            lambda: OutputPolicy("a", labels=("x", "y"), bias=(1.0, 2.0)),
            "only with constrain",
        ),
        (lambda: RetryPolicy("a", attempts=0), "1 to 16 attempts"),
        (lambda: RetryPolicy("a", how="again"), "same, feedback, template"),
        (lambda: RetryPolicy("a", min_confidence=2), r"in \[0, 1\]"),
        (lambda: RetryPolicy("a", attempts=2, temperature=0.0), "greedy answer never"),
        (lambda: ToolPolicy("a", calls=-1), "0 to 64 calls"),
        (lambda: ToolPolicy("a", timeout_s=0), "timeout_s above 0"),
        (lambda: ToolPolicy("a", on_error="ask"), "show, hide, stop"),
        (lambda: ToolPolicy("a", protocol="xml"), "expected protocol among"),
        (lambda: ToolPolicy("a", tools=("x", "x")), "different tools"),
        (lambda: ContextPolicy("a", turns=-1), "turns of 0 or more"),
        (lambda: ContextPolicy("a", result_chars=3), "result_chars of 16"),
        (lambda: ContextPolicy("a", attempt_tokens=0), "attempt_tokens of 1"),
        (lambda: ToolSpec("two words", ""), "letters, digits"),
    ],
)
def test_what_cannot_be_used_is_refused_when_built(make, said):
    with pytest.raises(ValueError, match=said):
        make()


SPECS = (
    ToolSpec("math.add", "Adds.", {"properties": {"a": {}, "b": {}}}),
    ToolSpec("search", "Searches.", {"properties": {"query": {}}}),
)


def test_tools_are_offered_in_the_policys_order():
    assert ToolPolicy("a").offered(SPECS) == SPECS
    chosen = ToolPolicy("a", tools=("search", "missing", "math.add"))
    assert [spec.name for spec in chosen.offered(SPECS)] == ["search", "math.add"]
    assert ToolPolicy("a", calls=0).offered(SPECS) == ()


ADD = ToolCall("math.add", {"a": 1, "b": [2, "x, y"]})


@pytest.mark.parametrize(
    ("protocol", "text", "calls", "problem"),
    [
        (
            "tags",
            'Let me.<tool_call>\n{"name": "math.add", "arguments": '
            '{"a": 1, "b": [2, "x, y"]}}\n</tool_call> and more',
            (ADD,),
            "",
        ),
        (
            "tags",
            '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
            '<tool_call>{"name": 3}',
            (ToolCall("search", {}),),
            '"name"',
        ),
        ("tags", "<tool_call>{oops", (), "must be JSON"),
        ("tags", '<tool_call>{"name": "a", "arguments": 3}', (), "must be an object"),
        ("tags", "The answer is 3.", (), ""),
        # the whole text is a call whose tags were left out, fenced or not
        (
            "tags",
            '{"name": "math.add", "arguments": {"a": 1, "b": [2, "x, y"]}}',
            (ADD,),
            "",
        ),
        (
            "tags",
            '```json\n{\n  "name": "search",\n  "arguments": {"query": "x"}\n}\n```\n',
            (ToolCall("search", {"query": "x"}),),
            "",
        ),
        ("tags", 'It is {"name": "search", "arguments": {}}', (), ""),
        ("tags", '{"name": "Ada"}', (), ""),
        (
            "tags",
            '{"name": "a", "arguments": {}}\n{"name": "b", "arguments": {}}\n',
            (ToolCall("a", {}), ToolCall("b", {})),
            "",
        ),
        (
            "tags",
            '{"name": "a", "arguments": {}}\n{"name": "b", "argum',
            (ToolCall("a", {}),),
            "must be JSON",
        ),
        ("tags", '{"name": "a", "arguments": {}} is the call', (), ""),
        (
            "tags",
            '{"name": "search", "description": "", "parameters": {"type": "x"}}',
            (),
            "repeat the signature",
        ),
        (
            "tags",
            '<tool_call>{"name": "a", "description": "", "parameters": {}}</tool_call>',
            (),
            "repeat the signature",
        ),
        (
            "tags",
            '<tool_call>{"name": "search", "parameters": {"query": "x"}}</tool_call>',
            (ToolCall("search", {"query": "x"}),),
            "",
        ),
        (
            "fenced",
            '{"name": "search", "arguments": {"query": "x"}}',
            (ToolCall("search", {"query": "x"}),),
            "",
        ),
        ("fenced", '```json\n{"name": "Ada", "age": 36}\n```', (), ""),
        # several calls within one mark
        (
            "fenced",
            '```json\n{"name": "a", "arguments": {}}\n{"name": "b"}\n```',
            (ToolCall("a", {}), ToolCall("b", {})),
            "",
        ),
        (
            "tags",
            '<tool_call>{"name": "a", "arguments": {}}, {"name": "b"}</tool_call>',
            (ToolCall("a", {}), ToolCall("b", {})),
            "",
        ),
        (
            "tags",
            '<tool_call>{"name": "a", "arguments": {}} please</tool_call>',
            (ToolCall("a", {}),),
            "must be JSON",
        ),
        ("tags", "<tool_call></tool_call>", (), "must be JSON"),
        (
            "fenced",
            '```json\n{"name": "search", "description": "", "parameters": {}}\n```',
            (),
            "repeat the signature",
        ),
        (
            "lines",
            "Call: search(query='x', exact=True, page=None)",
            (ToolCall("search", {"query": "x", "exact": True, "page": None}),),
            "",
        ),
        (
            "fenced",
            '```json\n{"name": "search", "arguments": {"query": "x"}}\n```',
            (ToolCall("search", {"query": "x"}),),
            "",
        ),
        ("fenced", "```python\nprint(1)\n```", (), ""),
        ("fenced", '```json\n{"name": "search", "arguments": {\n```', (), "JSON"),
        (
            "lines",
            'Thought.\nCall: math.add(a=1, b=[2, "x, y"])',
            (ADD,),
            "",
        ),
        (
            "lines",
            "Call: search(query='it\\'s', num=2)",
            (ToolCall("search", {"query": "it's", "num": 2}),),
            "",
        ),
        ("lines", "Call: search(x)", (), 'name="value"'),
        ("lines", "Call: search", (), "must be a line"),
        ("lines", "I call it search.", (), ""),
    ],
)
def test_each_protocol_reads_calls(protocol, text, calls, problem):
    written = PROTOCOLS[protocol].read(text)
    assert written.calls == calls
    assert [dict(c.arguments) for c in written.calls] == [
        dict(c.arguments) for c in calls
    ]
    assert problem in written.problem and bool(problem) == bool(written.problem)


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_a_protocol_shows_every_tool_and_reads_its_own_example(protocol):
    text = PROTOCOLS[protocol].describe(SPECS)
    for spec in SPECS:
        assert spec.name in text and spec.description in text
    assert all(stop in text for stop in PROTOCOLS[protocol].stops)


@given(st.text(), st.sampled_from(sorted(PROTOCOLS)))
def test_reading_is_total(text, protocol):
    PROTOCOLS[protocol].read(text)


@given(st.text(alphabet="Call: a(b=\"'[{,\\)}]=\n", max_size=60))
def test_reading_lines_is_total_on_what_nearly_is_a_call(text):
    for call in PROTOCOLS["lines"].read(f"Call: {text}").calls:
        json.dumps(dict(call.arguments))


PIECES = (
    '{"name": "a", "arguments": {', "}", "{", "```json\n", "```", "<tool_call>",
    "</tool_call>", '"description": 1', "parameters", ",", '"', "\\", "\n", "[" * 2000,
)  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES)).map("".join), st.sampled_from(sorted(PROTOCOLS))
)
def test_reading_json_is_total_on_what_nearly_is_a_call(text, protocol):
    written = PROTOCOLS[protocol].read(text)
    assert all(isinstance(call.name, str) for call in written.calls)


def test_context_keeps_the_newest_turns_and_cuts():
    assert list(ContextPolicy("a").kept([1, 2, 3])) == [1, 2, 3]
    assert list(ContextPolicy("a", turns=2).kept([1, 2, 3])) == [2, 3]
    assert list(ContextPolicy("a", turns=0).kept([1, 2, 3])) == []
    assert list(ContextPolicy("a", turns=9).kept([1])) == [1]
    policy = ContextPolicy("a", result_chars=16, quote=True)
    assert policy.show_result("x" * 40 + "\n") == "> " + "x" * 12 + " ..."
    assert policy.show_result("a\nb") == "> a\n> b"


def test_the_parsers_digest_is_of_its_code():
    assert len(parser_digest()) == 64 and parser_digest() == parser_digest()
