"""MBPP: short Python functions from a sentence and a test (Austin et al. 2021)."""

import json
import re
from pathlib import Path
from typing import Any

from metaharness.errors import TaskError
from metaharness.tasks.execution import execution_scorer
from metaharness.tasks.jsonl import read_rows, text_field
from metaharness.tasks.records import field_of, find_records, prepare_records
from metaharness.tasks.splits import fitting_sizes, make_splits
from metaharness.tasks.task import Item, SplitSizes, Task, fingerprint

FILE = "mbpp.jsonl"
URL = (
    "https://raw.githubusercontent.com/google-research/google-research/master/mbpp/"
    + FILE
)
SIZES = SplitSizes(pool=64, train=320, validation=90, test=500)
# Problems whose values are no plain data, so that they cannot reach the tests.
NOT_PLAIN = {124: "complex numbers", 533: "a type", 590: "complex numbers"}
_DEFINED = re.compile(r"^(?:def|class)[ \t]+(\w+)", re.M)
_NAME = re.compile(r"[^\W\d]\w*")
_IMPORT = re.compile(r"(?:import|from)[ \t]+(.+)")


def load_mbpp(*, data_dir: Path | None, seed: int, sizes: SplitSizes | None) -> Task:
    """MBPP, all 974 problems, with its own split by task_id.

    11 to 510 are test, 511 to 600 validation; pool and train are carved out of 601 to
    974 and of the ten problems that Austin et al. show in prompts. The question is the
    problem's sentence and its first assert, which gives name and arguments; the answer
    is the canonical code; graded by all asserts, each side in a confined process
    (`mbpp_grading`). Problems whose tests use more of the solution than one function (a
    class, say) and those of `NOT_PLAIN` cannot be graded so: they are left out, and
    `source` counts them.

    data_dir: folder that holds mbpp/mbpp.jsonl (or .jsonl.gz, or without the
    subfolder).

    Raises TaskError when the data is not there.
    """
    path = find_records("mbpp", data_dir, FILE, URL)
    from metaharness.tasks.builders import MetaharnessMbpp
    from metaharness.tasks.mbpp_grading import grade_mbpp

    flat = [_flat(path, number, row) for number, row in read_rows(path)]
    rows, digest = prepare_records("mbpp", MetaharnessMbpp, flat)
    official: dict[str, list[Item]] = {"train": [], "validation": [], "test": []}
    num_left_out = 0
    for row in rows:
        number = int(row["task_id"])
        entry = entry_point(row["code"], json.loads(row["tests"]), row["setup"])
        if entry is None or number in NOT_PLAIN:
            num_left_out += 1
        else:
            official[_part(number)].append(_item(row, entry))
    if not all(official.values()):
        raise TaskError(
            f"{path}: expected problems of all parts (task_id 11 to 974), got "
            f"{len(rows)} problems; fetch the file again."
        )
    wanted = sizes or fitting_sizes(official, SIZES)
    splits = make_splits("mbpp", official, wanted, seed, at_most=sizes is None)
    return Task(
        name="mbpp",
        **splits,
        scorer=execution_scorer(grade_mbpp),
        max_new_tokens=384,
        stop=("\nassert ", "\nif __name__", "\n[DONE]"),
        fingerprint=fingerprint(splits),
        source=f"MBPP, local file, SHA-256 of its rows {digest}, seed {seed}; "
        f"{num_left_out} problems left out whose tests use more than one function of "
        "the solution, or values that are no plain data",
    )


def entry_point(code: str, tests: list[str], setup: str) -> str | None:
    """The one top-level name of the code that the tests use; None if not exactly one.

    A name inside a string counts as used: a problem more is left out, not graded wrong.
    """
    used = set(_NAME.findall("\n".join([*tests, setup])))
    names = {name for name in _DEFINED.findall(code) if name in used}
    return names.pop() if len(names) == 1 else None


def _part(number: int) -> str:
    if 11 <= number <= 510:
        return "test"
    return "validation" if 511 <= number <= 600 else "train"


def _flat(path: Path, number: int, row: dict[str, Any]) -> dict[str, str]:
    tests = field_of(path, number, row, "test_list", list)
    if not tests or not all(isinstance(test, str) for test in tests):
        raise TaskError(
            f"{path}: item {number}: expected asserts in field 'test_list', got "
            f"{json.dumps(tests)[:40]}; fetch the file again."
        )
    setup = field_of(path, number, row, "test_setup_code", str)
    return {
        "task_id": str(field_of(path, number, row, "task_id", int)),
        "text": text_field(path, number, row, "text"),
        "code": text_field(path, number, row, "code"),
        "tests": json.dumps(tests),
        # TFDS's text must not be empty here
        "setup": setup if setup.strip() else "pass",
    }


def _item(row: dict[str, str], entry: str) -> Item:
    tests = [_unix(test) for test in json.loads(row["tests"])]
    text, code = _unix(row["text"]).strip(), _unix(row["code"]).strip()
    setup = "\n".join([_unix(row["setup"]), *_imports(code, tests)])
    return Item(
        uid=f"mbpp/{row['task_id']}",
        question=f"{text}\nYour code should pass this test:\n{tests[0].strip()}",
        answer=code,
        meta={"entry_point": entry, "tests": tests, "setup": setup},
    )


def _imports(code: str, tests: list[str]) -> list[str]:
    """Imports of the canonical code that the tests use, too: Austin et al. run both in
    one namespace.
    """
    used = set(_NAME.findall("\n".join(tests)))
    found = map(_IMPORT.fullmatch, code.split("\n"))
    return [m[0] for m in found if m and used.intersection(_NAME.findall(m[1]))]


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
