"""SVAMP: one- and two-step word problems, varied on purpose (Patel et al. 2021)."""

from fractions import Fraction
from pathlib import Path
from typing import Any

from components.numbers import write_number
from metaharness.tasks.calculator import calculator_environment
from metaharness.tasks.jsonl import text_field
from metaharness.tasks.records import (
    field_of,
    find_records,
    prepare_records,
    read_list,
)
from metaharness.tasks.scorers import number_match
from metaharness.tasks.splits import make_splits
from metaharness.tasks.task import Item, SplitSizes, Task, fingerprint

FILE = "SVAMP.json"
URL = f"https://raw.githubusercontent.com/arkilpatel/SVAMP/main/{FILE}"
SIZES = SplitSizes(pool=64, train=400, validation=128, test=400)


def load_svamp(*, data_dir: Path | None, seed: int, sizes: SplitSizes | None) -> Task:
    """SVAMP's 1,000 problems, cut into four disjoint splits (it has only one).

    The question is body and question with a space between them (as in Kojima et al.
    2022), the answer the number alone; scored by equality of the final number. A
    calculator is at hand in episodes. data_dir: folder that holds svamp/SVAMP.json (or
    .json.gz, or without the subfolder).

    Raises TaskError when the data is not there.
    """
    path = find_records("svamp", data_dir, FILE, URL)
    from metaharness.tasks.builders import MetaharnessSvamp

    flat = [_flat(path, n, row) for n, row in enumerate(read_list(path), start=1)]
    rows, digest = prepare_records("svamp", MetaharnessSvamp, flat)
    items = [
        Item(f"svamp/{row['id']}", f"{row['body']} {row['question']}", row["answer"])
        for row in rows
    ]
    splits = make_splits(
        "svamp", {"": items}, sizes or SIZES, seed, at_most=sizes is None
    )
    return Task(
        name="svamp",
        **splits,
        scorer=number_match,
        max_new_tokens=128,
        # a chat model leaves blank lines between its steps: they end nothing
        stop=("\nQuestion:",),
        fingerprint=fingerprint(splits),
        source=f"SVAMP, local file, SHA-256 of its rows {digest}, seed {seed}",
        environment=calculator_environment(number_match),
    )


def _flat(path: Path, number: int, row: dict[str, Any]) -> dict[str, str]:
    answer = field_of(path, number, row, "Answer", (int, float))
    return {
        "id": text_field(path, number, row, "ID"),
        "body": text_field(path, number, row, "Body").strip(),
        "question": text_field(path, number, row, "Question").strip(),
        "answer": write_number(Fraction(str(answer))),
    }
