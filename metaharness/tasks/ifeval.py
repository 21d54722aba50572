"""IFEval: prompts whose instructions on form a program can check (Zhou et al. 2023)."""

import json
from pathlib import Path
from typing import Any

from components.format_checks import follows, unsupported
from metaharness.errors import TaskError
from metaharness.tasks.jsonl import read_rows, text_field
from metaharness.tasks.records import field_of, find_records, prepare_records
from metaharness.tasks.splits import make_splits
from metaharness.tasks.task import Item, SplitSizes, Task, fingerprint

FILE = "input_data.jsonl"
URL = (
    "https://raw.githubusercontent.com/google-research/google-research/master/"
    f"instruction_following_eval/data/{FILE}"
)
SIZES = SplitSizes(pool=16, train=192, validation=82, test=250)


def load_ifeval(*, data_dir: Path | None, seed: int, sizes: SplitSizes | None) -> Task:
    """IFEval's prompts, cut into four disjoint splits (it has only one).

    For episodes only: there are no gold answers, so every item's answer is empty, which
    the likelihood objective and exemplar pools refuse. Scored by the share of a
    prompt's instructions that the answer follows (strict: the answer as it is);
    `all_followed` is the accuracy by prompt. `meta["instructions"]` holds their ids,
    `meta["arguments"]` what each takes. Prompts with an instruction that cannot be
    checked are left out; `source` counts them.

    data_dir: folder that holds ifeval/input_data.jsonl (or .jsonl.gz, or without the
    subfolder).

    Raises TaskError when the data is not there.
    """
    path = find_records("ifeval", data_dir, FILE, URL)
    from metaharness.tasks.builders import MetaharnessIfeval

    flat = [_flat(path, number, row) for number, row in read_rows(path)]
    rows, digest = prepare_records("ifeval", MetaharnessIfeval, flat)
    items = [item for item in map(_item, rows) if not _reasons(item)]
    splits = make_splits(
        "ifeval", {"": items}, sizes or SIZES, seed, at_most=sizes is None
    )
    return Task(
        name="ifeval",
        **splits,
        scorer=share_followed,
        max_new_tokens=1280,
        stop=(),
        fingerprint=fingerprint(splits),
        source=f"IFEval, local file, SHA-256 of its rows {digest}, seed {seed}; no "
        f"gold answers; {len(rows) - len(items)} prompts left out whose instructions "
        "cannot be checked",
    )


def followed(text: str, item: Item) -> tuple[bool, ...]:
    """Which of the item's instructions the text follows, in their order."""
    pairs = zip(item.meta["instructions"], item.meta["arguments"], strict=True)
    return tuple(follows(text, name, arguments) for name, arguments in pairs)


def share_followed(text: str, item: Item) -> float:
    """Share of the item's instructions that the text follows, in [0, 1].

    Its mean over items is not the paper's accuracy by instruction, where a prompt with
    three instructions counts three times.
    """
    marks = followed(text, item)
    return sum(marks) / len(marks)


def all_followed(text: str, item: Item) -> float:
    """1.0 where the text follows every instruction: its mean is the accuracy by prompt
    (strict).
    """
    return float(all(followed(text, item)))


def _reasons(item: Item) -> list[str]:
    pairs = zip(item.meta["instructions"], item.meta["arguments"], strict=True)
    return [why for name, arguments in pairs if (why := unsupported(name, arguments))]


def _flat(path: Path, number: int, row: dict[str, Any]) -> dict[str, str]:
    names = field_of(path, number, row, "instruction_id_list", list)
    arguments = field_of(path, number, row, "kwargs", list)
    if (
        not names
        or len(names) != len(arguments)
        or not all(isinstance(name, str) for name in names)
        or not all(isinstance(each, dict) for each in arguments)
    ):
        raise TaskError(
            f"{path}: item {number}: expected one object in 'kwargs' for each id in "
            f"'instruction_id_list', got {len(arguments)} for {len(names)}; fetch the "
            "file again."
        )
    return {
        "key": str(field_of(path, number, row, "key", int)),
        "prompt": text_field(path, number, row, "prompt"),
        "instructions": json.dumps(names),
        "arguments": json.dumps(arguments),
    }


def _item(row: dict[str, str]) -> Item:
    return Item(
        uid=f"ifeval/{row['key']}",
        question=row["prompt"].strip(),
        answer="",
        meta={
            "instructions": json.loads(row["instructions"]),
            "arguments": json.loads(row["arguments"]),
        },
    )
