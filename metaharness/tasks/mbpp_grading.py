"""MBPP grading: its asserts in one confined process, the candidate in another."""

from dataclasses import replace

from components.program import extract_program
from metaharness.errors import TaskError
from metaharness.sandbox import Limits, Sandbox
from metaharness.tasks import split_grading
from metaharness.tasks.split_grading import CHECK, Grade, grade_split
from metaharness.tasks.task import Item

# The canonical code of problem 123 takes 2.4 s.
LIMITS = replace(split_grading.LIMITS, cpu_s=8.0, wall_s=40.0)


def grade_mbpp(
    item: Item, completion: str, sandbox: Sandbox, *, limits: Limits = LIMITS
) -> Grade:
    """Whether a completion, in whatever text a model wraps it, passes all asserts.

    item: of the task mbpp; limits: of each of the two processes, for the whole problem.
    Raises TaskError when the item is not one, never for the completion.
    """
    missing = {"entry_point", "tests", "setup"} - item.meta.keys()
    if missing:
        raise TaskError(
            f"item {item.uid!r}: expected an item of the task mbpp, got one without "
            f"{sorted(missing)}; load it with load_task('mbpp')."
        )
    entry = item.meta["entry_point"]
    source = extract_program(completion, entry)
    return grade_split(source, _tests(item, entry), entry, sandbox, limits=limits)


def _tests(item: Item, entry: str) -> str:
    """The asserts, each compiled by itself: some hold line breaks inside a string."""
    return (
        f"{item.meta['setup']}\n"
        f"_tests = [compile(t, 'test', 'exec') for t in {list(item.meta['tests'])!r}]\n"
        f"def {CHECK}(candidate):\n"
        f"    globals()[{entry!r}] = candidate\n"
        f"    for test in _tests:\n"
        f"        exec(test, globals())\n"
    )
