"""Tasks of instruction induction (Honovich et al. 2022) from a local copy.

The file holds one JSON object a line: ``task``, ``split`` ("induce" for demonstrations,
"execute" for the test), ``input`` and ``output``.
"""

from pathlib import Path

from metaharness.errors import TaskError
from metaharness.tasks.jsonl import normalised_match, read_rows
from metaharness.tasks.splits import make_splits
from metaharness.tasks.task import Item, SplitSizes, Task, answer_limits, fingerprint

FILE = Path("instruction_induction") / "raw.jsonl.gz"
SIZES = SplitSizes(pool=48, train=200, validation=64, test=100)


def load_instruction(name: str, data_dir: Path, *, sizes: SplitSizes = SIZES) -> Task:
    """One task by name; its test split is made of "execute" items alone.

    Raises TaskError: no such file, or no such task in it.
    """
    path = Path(data_dir) / FILE
    if not path.is_file():
        raise TaskError(
            f"{path}: expected the instruction-induction data, found no file; put a "
            "copy there, or name another folder with --data-dir"
        )
    official: dict[str, list[Item]] = {"test": [], "train": []}
    for number, row in read_rows(path):
        if row.get("task") == name:
            split = {"induce": "train", "execute": "test"}[row["split"]]
            answer = row["output"]
            if isinstance(answer, list):
                answer = answer[0]
            official[split].append(Item(f"{name}:{number}", row["input"], answer))
    if not official["test"]:
        raise TaskError(
            f"{path}: expected items of task {name!r}, found none; name a task of the "
            "file"
        )
    splits = make_splits(name, official, sizes, seed=0, at_most=True)
    max_new_tokens, stop = answer_limits(splits["pool"] + splits["train"])
    return Task(
        name=name,
        **splits,
        scorer=normalised_match,
        max_new_tokens=max_new_tokens,
        stop=stop,
        fingerprint=fingerprint(splits),
        source="instruction induction, Honovich et al. 2022",
    )
