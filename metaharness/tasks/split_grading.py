"""Grading of code: the tests in one confined process, the candidate in another.

Tests that run beside the candidate believe what it shows them: a value that equals
everything passes 155 of HumanEval's 164 problems. Here a candidate's answer reaches the
tests as plain data only, and the verdict is what the tests' process says, which runs
nothing of the candidate's. Both are confined: the host runs neither.
"""

from dataclasses import dataclass
from enum import StrEnum

from metaharness.errors import TaskError
from metaharness.sandbox import Limits, Outcome, Plain, Program, Result, Sandbox

# Chen et al. (2021) give a program 3 s of wall time; CPU time does not depend on load.
LIMITS = Limits(
    cpu_s=3.0,
    wall_s=15.0,
    memory_bytes=256 << 20,
    calls=10_000,
    call_bytes=1 << 20,
)
# The function of the tests' source that takes the candidate and raises where it fails.
CHECK = "_check_candidate"


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


def grade_split(
    source: str | None,
    tests: str,
    entry: str,
    sandbox: Sandbox,
    *,
    limits: Limits = LIMITS,
) -> Grade:
    """Whether a program passes the tests of its function `entry`.

    source: the candidate's program, None where its text holds none; tests: a program
    that defines `CHECK`, a function of the candidate; limits: of each of the two
    processes, for the whole problem. A candidate that did not answer a call has failed,
    even where the tests catch that.

    Raises TaskError when the tests do not load or never call the candidate; never for
    what the candidate does.
    """
    if source is None:
        return Grade(False, Why.NO_CODE, f"no function {entry!r} in the text")
    with sandbox.load(source, keep=True, limits=limits) as candidate:
        loaded = candidate.start()
        if loaded.outcome is not Outcome.OK:
            return Grade(False, _WHY[loaded.outcome], loaded.error)
        with sandbox.load(tests, keep=True, limits=limits) as judge:
            return _grade(judge, candidate, entry)


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

    verdict = judge.call(CHECK, tools={"candidate": ask})
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
