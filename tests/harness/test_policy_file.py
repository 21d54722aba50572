"""Policies of a harness file, and of a learned harness, come back as they were."""

import re
from pathlib import Path

import pytest

from components.context_policy import ContextPolicy
from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from components.tool_policy import ToolPolicy
from metaharness.errors import HarnessError
from metaharness.harness.file import load_harness_file
from metaharness.harness.learned import Learned, learned_from_json
from metaharness.harness.slots import Choice, Harness
from metaharness.runlog.jsonfile import dumps, json_safe

FILE = """
[[output.candidates]]
name = "digits"
extract = "last_line"
pattern = '\\d+'

[[output.candidates]]
name = "labels"
labels = ["yes", "no"]
constrain = true
bias = [0, 0.5]

[[output.candidates]]
name = "json"
extract = "json"
schema = { type = "object" }

[[retry.candidates]]
name = "once"

[[retry.candidates]]
name = "sure"
attempts = 3
min_confidence = 1

[[tools.candidates]]
name = "search"
tools = ["search"]
timeout_s = 2

[[context.candidates]]
name = "short"
turns = 1
quote = true
"""
POLICIES = {
    "output": (
        OutputPolicy("digits", extract="last_line", pattern=r"\d+"),
        OutputPolicy("labels", labels=("yes", "no"), constrain=True, bias=(0.0, 0.5)),
        OutputPolicy("json", extract="json", schema={"type": "object"}),
    ),
    "retry": (RetryPolicy("once"), RetryPolicy("sure", 3, min_confidence=1.0)),
    "tools": (ToolPolicy("search", ("search",), timeout_s=2.0),),
    "context": (ContextPolicy("short", turns=1, quote=True),),
}


def load(tmp_path, text):
    path = tmp_path / "harness.toml"
    path.write_text(text)
    return load_harness_file(path)


def test_a_file_gives_its_policies(tmp_path):
    assert load(tmp_path, FILE).policies == POLICIES


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[[retry.candidates]]", "[[retry.candidate]]", "expected option among cand"),
        ('name = "once"', 'nam = "once"', "did you mean 'name'"),
        ('name = "once"', "attempts = 2", "expected a name, got none"),
        ("attempts = 3", 'attempts = "3"', "attempts: expected a whole number"),
        ("attempts = 3", "attempts = true", "attempts: expected a whole number"),
        ("attempts = 3", "attempts = 99", "expected 1 to 16 attempts"),
        ('name = "sure"', 'name = "once"', "name: expected different names"),
        ("quote = true", 'quote = "yes"', "quote: expected true or false"),
        ('labels = ["yes", "no"]', "labels = [1, 2]", "labels: expected a list"),
        ('tools = ["search"]', 'tools = "search"', "tools: expected a list"),
        ("schema = { type", "schema = { kind", "expected keywords among"),
    ],
)
def test_errors_name_the_line_and_the_remedy(tmp_path, old, new, said):
    assert old in FILE
    with pytest.raises(HarnessError, match=r"harness\.toml:\d+: ") as error:
        load(tmp_path, FILE.replace(old, new))
    assert said in str(error.value)


def test_a_learned_harness_comes_back_with_its_policies():
    harness = Harness(None, **POLICIES)
    choice = Choice((), 1, output=1, retry=1)
    learned = Learned(harness, {"t": choice}, {}, "model", "0" * 64)
    data = json_safe(learned.as_json())
    assert data["chosen"]["t"]["retry"] == "sure"
    assert learned_from_json(data) == learned
    assert dumps(data)


@pytest.mark.parametrize(
    ("slot", "field", "value"),
    [("retry", "attempts", "3"), ("retry", "often", 1), ("output", "extract", "x")],
)
def test_a_changed_file_is_refused(slot, field, value):
    harness = Harness(None, **POLICIES)
    data = json_safe(
        Learned(harness, {"t": Choice((), 0)}, {}, "model", "0" * 64).as_json()
    )
    data["slots"][slot]["pool"][0][field] = value
    with pytest.raises(HarnessError, match="complete learned harness"):
        learned_from_json(data)


def test_two_policies_of_one_name_are_refused():
    with pytest.raises(HarnessError, match="once"):
        Harness(None, retry=(RetryPolicy("once"), RetryPolicy("once", 2)))


def test_the_readmes_policies_can_be_read(tmp_path):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)
    policies = load(tmp_path, block).policies
    assert set(policies) == {"output", "retry", "tools", "context"}
