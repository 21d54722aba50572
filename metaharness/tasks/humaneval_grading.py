"""HumanEval grading: the tests in one confined process, the candidate in another.

The package's own runner executes the tests beside the candidate, where a value that
equals everything passes 155 of the 164 problems; `split_grading` says what is done
instead.
"""

import re

from components.program import extract_program
from metaharness.errors import TaskError
from metaharness.sandbox import Limits, Sandbox
from metaharness.tasks.split_grading import CHECK, LIMITS, Grade, Why, grade_split
from metaharness.tasks.task import Item, Scorer

__all__ = ["LIMITS", "Grade", "Why", "grade_humaneval", "humaneval_scorer"]


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
    tests = _judge_source(item, entry)
    return grade_split(source, tests, entry, sandbox, limits=limits)


def humaneval_scorer(sandbox: Sandbox, *, limits: Limits = LIMITS) -> Scorer:
    """A scorer for the task humaneval: 1 for a pass, else 0."""
    return lambda text, item: float(
        grade_humaneval(item, text, sandbox, limits=limits).passed
    )


def _judge_source(item: Item, entry: str) -> str:
    """The tests, the prompt's helper functions, and the candidate under its own name,
    which some tests use.
    """
    head = re.split(rf"(?m)^def +{re.escape(entry)} *\(", item.question)[0]
    return (
        f"{head}\n{item.meta['test']}\n\n"
        f"def {CHECK}(candidate):\n"
        f"    globals()[{entry!r}] = candidate\n"
        f"    check(candidate)\n"
    )
