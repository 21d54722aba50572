"""HumanEval grading: the tests in one confined process, the candidate in another.

The package's own runner executes the tests beside the candidate, where a value that
equals everything passes 155 of the 164 problems. Here a candidate's answer reaches the
tests as plain data only, and the verdict is what the tests' process says, which runs
nothing of the candidate's. Both are confined: the host runs neither.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from components.program import extract_program
from metaharness.errors import TaskError
from metaharness.sandbox import Limits, Outcome, Plain, Program, Result, Sandbox
from metaharness.tasks.task import Item, Scorer

# Chen et al. (2021) give a program 3 s of wall time; CPU time does not depend on load.
LIMITS = Limits(
    cpu_s=3.0,
    wall_s=15.0,
    memory_bytes=256 << 20,
    calls=10_000,
    call_bytes=1 << 20,
)
_CHECK = "_check_candidate"


class Why(StrEnum):
    """Which boundary a completion reached; only PASSED is a pass."""

    PASSED = "passed"
    NO_CODE = "no code"
    SYNTAX = "syntax error"
    RAISED = "raised"
    WRONG = "wrong answer"
    TIMEOUT = "timeout"
    MEMORY = "out of memory"
    OUTPUT = "too much output"
    CRASHED = "crashed"


_WHY = {
    Outcome.ERROR: Why.RAISED,
    Outcome.REFUSED: Why.SYNTAX,
    Outcome.CPU: Why.TIMEOUT,
    Outcome.WALL: Why.TIMEOUT,
    Outcome.MEMORY: Why.MEMORY,
    Outcome.OUTPUT: Why.OUTPUT,
    Outcome.RESULT: Why.WRONG,
    Outcome.CALLS: Why.CRASHED,
    Outcome.CRASHED: Why.CRASHED,
}


@dataclass(frozen=True)
class Grade:
    """detail: the message behind `why`, at most 500 characters; empty for a pass."""

    passed: bool
    why: Why
    detail: str = ""


class _CandidateFailed(Exception):
    """The candidate gave no value; its result is kept beside."""


def grade_humaneval(
    item: Item, completion: str, sandbox: Sandbox, *, limits: Limits = LIMITS
) -> Grade:
    """Whether a completion, in whatever text a model wraps it, solves the problem.

    item: of the task humaneval; limits: of each of the two processes, for the whole
    problem. Raises TaskError when the item is not one, never for the completion.
    """
    missing = {"entry_point", "test"} - item.meta.keys()
    if missing:
        raise TaskError(
            f"item {item.uid!r}: expected an item of the task humaneval, got one "
            f"without {sorted(missing)}; load it with load_task('humaneval')."
        )
    entry = item.meta["entry_point"]
    source = extract_program(completion, entry, item.question)
    if source is None:
        return Grade(False, Why.NO_CODE, f"no function {entry!r} in the text")
    with sandbox.load(source, keep=True, limits=limits) as candidate:
        loaded = candidate.start()
        if loaded.outcome is not Outcome.OK:
            return Grade(False, _WHY[loaded.outcome], loaded.error)
        test = _judge_source(item, entry)
        with sandbox.load(test, keep=True, limits=limits) as judge:
            return _grade(judge, candidate, entry)


def humaneval_scorer(sandbox: Sandbox, *, limits: Limits = LIMITS) -> Scorer:
    """A scorer for the task humaneval: 1 for a pass, else 0."""
    return lambda text, item: float(
        grade_humaneval(item, text, sandbox, limits=limits).passed
    )


def _grade(judge: Program, candidate: Program, entry: str) -> Grade:
    failures: list[Result] = []
    ready = judge.start()
    if ready.outcome is not Outcome.OK:
        raise TaskError(
            f"test of {entry!r}: expected tests that load, got {ready.error}; repair "
            "the data file."
        )

    def ask(*arguments: Plain) -> Plain:
        result = candidate.call(entry, *arguments)
        if result.outcome is not Outcome.OK:
            failures.append(result)
            raise _CandidateFailed
        return result.value

    verdict = judge.call(_CHECK, tools={"candidate": ask})
    if failures:
        return Grade(False, _WHY[failures[0].outcome], failures[0].error)
    if verdict.outcome is not Outcome.OK:
        return Grade(False, Why.WRONG, verdict.error or "the tests did not finish")
    if not verdict.calls:
        raise TaskError(
            f"test of {entry!r}: expected at least one call of the candidate, got "
            "none; repair the data file."
        )
    return Grade(True, Why.PASSED)


def _judge_source(item: Item, entry: str) -> str:
    """The tests, the prompt's helper functions, and the candidate under its own name,
    which some tests use.
    """
    head = re.split(rf"(?m)^def +{re.escape(entry)} *\(", item.question)[0]
    return (
        f"{head}\n{item.meta['test']}\n\n"
        f"def {_CHECK}(candidate):\n"
        f"    globals()[{entry!r}] = candidate\n"
        f"    check(candidate)\n"
    )
