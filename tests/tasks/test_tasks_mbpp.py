"""MBPP: its own split, tests apart from the candidate, and no cheat that passes."""

import functools
import gzip
import json
from dataclasses import replace

import pytest

from metaharness.errors import SandboxError, TaskError
from metaharness.sandbox import open_sandbox
from metaharness.tasks import SplitSizes, load_task
from metaharness.tasks.mbpp import entry_point
from metaharness.tasks.mbpp_grading import LIMITS, grade_mbpp
from metaharness.tasks.split_grading import Why
from metaharness.tasks.task import Item


def problem(number, **changes):
    """One whose sentence is unlike the others', so that no leak is found."""
    words = [f"word{number * 7 + i * i}" for i in range(12)]
    row = {
        "task_id": number,
        "text": f"Write a function to add {number}: {' '.join(words)}.",
        "code": f"def add_{number}(x):\r\n    return x + {number}",
        "test_setup_code": "",
        "test_list": [
            f"assert add_{number}(1) == {number + 1}",
            f"assert add_{number}(5) == {number + 5}",
        ],
        "challenge_test_list": [],
    }
    return row | changes


NUMBERS = [*range(1, 31), *range(505, 520), *range(596, 650), 974]


def write(folder, rows):
    path = folder / "mbpp/mbpp.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def local(tmp_path):
    return write(tmp_path, [problem(number) for number in NUMBERS])


@pytest.fixture(scope="module")
def sandbox():
    try:
        opened = open_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def numbers(items):
    return {int(item.uid.removeprefix("mbpp/")) for item in items}


def test_the_split_is_the_official_one(local):
    task = load_task("mbpp", data_dir=local)
    assert numbers(task.test) == {n for n in NUMBERS if 11 <= n <= 510}
    assert numbers(task.validation) == {n for n in NUMBERS if 511 <= n <= 600}
    rest = numbers(task.pool) | numbers(task.train)
    assert rest == {n for n in NUMBERS if n <= 10 or n >= 601}


def test_the_question_shows_the_first_assert_only(local):
    item = load_task("mbpp", data_dir=local).test[0]
    number = int(item.uid.removeprefix("mbpp/"))
    assert item.question.endswith(
        f"\nYour code should pass this test:\nassert add_{number}(1) == {number + 1}"
    )
    assert "(5)" not in item.question and len(item.meta["tests"]) == 2
    assert item.answer == f"def add_{number}(x):\n    return x + {number}"
    assert item.meta["entry_point"] == f"add_{number}"


def test_a_packed_file_beside_the_folder_is_the_same_task(local, tmp_path):
    task = load_task("mbpp", data_dir=local)
    packed = tmp_path / "packed"
    packed.mkdir()
    text = (local / "mbpp/mbpp.jsonl").read_bytes()
    (packed / "mbpp.jsonl.gz").write_bytes(gzip.compress(text))
    assert load_task("mbpp", data_dir=packed).fingerprint == task.fingerprint
    sizes = SplitSizes(pool=5, train=6, validation=7, test=8)
    small = load_task("mbpp", data_dir=packed, sizes=sizes)
    assert [len(rows) for rows in small.splits().values()] == [5, 6, 7, 8]


def test_problems_that_need_more_than_one_function_are_left_out(local):
    changes = [
        {"code": "class P:\n    pass\ndef f(p):\n    return 1",
         "test_list": ["assert f(P()) == 1"]},
        {"test_setup_code": "root = Node(1)",
         "code": "class Node:\n    pass\ndef f(p):\n    return 1",
         "test_list": ["assert f(root) == 1"]},
        {"code": "f = max", "test_list": ["assert f(1, 2) == 2"]},
    ]  # fmt: skip
    rows = [problem(n, **c) for n, c in zip(range(20, 23), changes, strict=True)]
    kept = [problem(n) for n in NUMBERS if n not in range(20, 23)]
    rows.append(problem(124))  # its name is enough
    task = load_task("mbpp", data_dir=write(local, [*kept, *rows]))
    assert not numbers(task.test) & {20, 21, 22, 124} and 23 in numbers(task.test)
    assert "4 problems left out" in task.source


def test_the_tests_may_use_what_the_solution_imports(local):
    rows = [problem(number) for number in NUMBERS if number != 20]
    code = "import sys, os\r\nfrom re import sub\r\ndef f(x):\r\n    return x"
    tests = ["assert f(1) == sys.getsizeof(0) - sys.getsizeof(0) + 1"]
    rows.append(problem(20, code=code, test_list=tests))
    task = load_task("mbpp", data_dir=write(local, rows))
    (item,) = [item for item in task.test if item.uid == "mbpp/20"]
    assert item.meta["setup"] == "pass\nimport sys, os"


def test_the_entry_point_is_the_one_that_the_tests_name():
    code = "def helper(x): return x\n\n\ndef f(x):\n    def inner(): pass\n"
    assert entry_point(code, ["assert f(1) == 1"], "pass") == "f"
    assert entry_point(code, ["assert g(1) == 1"], "pass") is None
    assert entry_point(code, ["assert f(helper(1)) == 1"], "pass") is None
    assert entry_point(code, ["assert inner(1) == 1"], "pass") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_list": []}, "item 1: expected asserts in field 'test_list'"),
        ({"test_list": "assert"}, "item 1: expected list in field 'test_list'"),
        ({"task_id": "one"}, "item 1: expected int in field 'task_id', got \"one\""),
        ({"code": ""}, ":1: expected text in field 'code'"),
    ],
)
def test_a_broken_row_is_named(tmp_path, change, message):
    rows = [problem(1, **change), problem(2)]
    with pytest.raises(TaskError, match=message):
        load_task("mbpp", data_dir=write(tmp_path, rows))


def test_missing_data_is_named_with_what_to_fetch(tmp_path):
    with pytest.raises(TaskError, match="mbpp: expected its data, got no --data-dir"):
        load_task("mbpp")
    with pytest.raises(TaskError) as caught:
        load_task("mbpp", data_dir=tmp_path)
    said = str(caught.value)
    assert f"got no mbpp.jsonl in {tmp_path}; fetch https://raw" in said
    assert said.endswith(f"into {tmp_path}/mbpp/ and pass --data-dir {tmp_path}")


def item_of(code, *tests, setup="pass", entry="f"):
    return Item("f", "?", code, {"entry_point": entry, "tests": tests, "setup": setup})


ADD = item_of(
    "def f(a, b):\n    return a + b",
    "assert f(1, 2) == 3",
    "assert f((1,), (2,)) == (1, 2)",
    "assert sorted(set(f([1], [1])), reverse=True) == [1]",
)
ALWAYS_EQUAL = """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __lt__(self, other): return True
    def __abs__(self): return self
    def __sub__(self, other): return self
    def __len__(self): return 1
    def __iter__(self): return iter(())
"""
CHEATS = {
    "nothing": "return None",
    "always equal": "return Any()",
    "a subclass of int": "return type('I', (int,), {})(3)",
    "sys.exit": "import sys; sys.exit(0)",
    "os._exit": "import os; os._exit(0)",
    "success text": "print('passed')",
    "raise": "raise AssertionError",
    "true": "return True",
}


def cheat(item, body):
    return f"{ALWAYS_EQUAL}\ndef {item.meta['entry_point']}(*a, **k):\n    {body}\n"


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_do_not_pass(sandbox, name):
    assert not grade_mbpp(ADD, cheat(ADD, CHEATS[name]), sandbox).passed


@pytest.mark.parametrize(
    ("completion", "why"),
    [
        (ADD.answer, Why.PASSED),
        (f"Here:\n```python\n{ADD.answer}\n```\nDone.", Why.PASSED),
        (f"{ADD.answer}\nassert f(1, 2) == 4", Why.PASSED),
        ("f = lambda a, b: a + b", Why.PASSED),
        ("I do not know.", Why.NO_CODE),
        ("def g(a, b):\n    return a + b", Why.NO_CODE),
        ("def f(a, b):\n    return a +", Why.SYNTAX),
        ("def f(a, b):\n    return 3", Why.WRONG),
        ("def f(a, b):\n    return [*a, *b] if a != 1 else 3", Why.WRONG),
        ("def f(a, b):\n    return object()", Why.WRONG),
        ("def f(a):\n    return 3", Why.RAISED),
        ("def f(a, b):\n    while True: pass", Why.TIMEOUT),
    ],
)
def test_each_completion_gets_its_reason(sandbox, completion, why):
    quick = replace(LIMITS, cpu_s=0.3, wall_s=2.0)
    grade = grade_mbpp(ADD, completion, sandbox, limits=quick)
    assert grade.why is why, grade
    assert grade.passed == (why is Why.PASSED)


def test_tests_may_import_and_span_lines(sandbox):
    item = item_of(
        "def f(x):\n    return x",
        "assert math.isclose(f(1.0), 1.0)",
        "assert f('''a\n  b''') == '''a\n  b'''",
        setup="import math",
    )
    assert grade_mbpp(item, item.answer, sandbox).passed
    assert not grade_mbpp(item, "def f(x): return 1.0", sandbox).passed


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Item("x", "?", ""), "expected an item of the task mbpp"),
        (item_of("", "assert f("), "expected tests that load"),
        (item_of("", "assert True"), "expected at least one call"),
    ],
)
def test_broken_data_is_an_error_not_a_grade(sandbox, item, message):
    with pytest.raises(TaskError, match=message):
        grade_mbpp(item, "def f(): return 1", sandbox)


@functools.cache
def load_real(folder):
    return load_task("mbpp", data_dir=folder)


@pytest.fixture
def real(shared):
    return load_real(shared)


def everything(task):
    return [item for rows in task.splits().values() for item in rows]


def test_the_tasks_own_scorer_grades_real_problems(real, sandbox):
    for item in real.test[20:32]:
        assert real.scorer(item.answer, item) == 1.0
        assert real.scorer(cheat(item, "return Any()"), item) == 0.0
        assert not any(stop in item.answer for stop in real.stop)


@pytest.mark.slow
def test_canonical_solutions_pass(real, sandbox):
    """All but one, whose body begins with a comment at the margin: `extract_program`
    takes that for its end.
    """
    failed = {
        item.uid: grade
        for item in everything(real)
        if not (grade := grade_mbpp(item, item.answer, sandbox)).passed
    }
    assert failed.keys() <= {"mbpp/64"}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_pass_no_real_problem(real, sandbox, name):
    passed = [
        item.uid
        for item in real.test
        if grade_mbpp(item, cheat(item, CHEATS[name]), sandbox).passed
    ]
    assert passed == []
