"""Tasks: items in four fixed splits, a scorer, and a guard against leaks."""

from metaharness.tasks.leak import Leak, check_leaks, find_leaks
from metaharness.tasks.registry import load_task, task_names
from metaharness.tasks.task import SPLITS, Item, SplitSizes, Task, TaskInfo

__all__ = [
    "SPLITS",
    "Item",
    "Leak",
    "SplitSizes",
    "Task",
    "TaskInfo",
    "check_leaks",
    "find_leaks",
    "load_task",
    "task_names",
]
