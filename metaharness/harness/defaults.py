"""The harness file that comes with a task: what to start from, and what to search.

Its first candidates together are a harness that a careful person would deploy; the
others are there to be compared with it.
"""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from metaharness.errors import HarnessError

DEFAULT = "default"
"""In the place of a harness file's path: the file that comes with the task."""

FILES: dict[str, str] = {
    "gsm8k": "gsm8k.toml",
    "svamp": "svamp.toml",
    "humaneval": "humaneval.toml",
    "mbpp": "mbpp.toml",
    "hotpotqa": "multi_hop.toml",
    "musique": "multi_hop.toml",
    "squad2": "squad2.toml",
    "ifeval": "ifeval.toml",
    "tau2_retail": "tau2.toml",
    "tau2_mock": "tau2.toml",
    "bfcl_simple": "bfcl.toml",
    "bfcl_multiple": "bfcl.toml",
}
"""Task -> its file in the folder ``defaults``."""


def default_harness_file(task_name: str) -> Path:
    """The harness file that comes with a task.

    Raises HarnessError naming the tasks that have one.
    """
    if task_name not in FILES:
        raise HarnessError(
            f"harness: expected a task with a default one ({', '.join(FILES)}), got "
            f"{task_name!r}; give the path of a harness file"
        )
    folder = files("metaharness.harness") / "defaults"
    return Path(str(folder / FILES[task_name]))


def harness_path(given: Path, task_names: Sequence[str]) -> Path:
    """The harness file that is meant: ``given``, or for ``DEFAULT`` that of the tasks.

    Raises HarnessError where a task has none, or tasks have different ones.
    """
    if str(given) != DEFAULT:
        return given
    paths = {name: default_harness_file(name) for name in task_names}
    if len(set(paths.values())) != 1:
        said = ", ".join(f"{name} {path.name}" for name, path in paths.items())
        raise HarnessError(
            f"harness: expected tasks that share a default one, got {said or 'none'}; "
            "take them one by one, or write one harness file for all"
        )
    return next(iter(paths.values()))
