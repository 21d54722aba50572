"""GSM8K: grade-school word problems with worked solutions (Cobbe et al. 2021)."""

import hashlib
import re
from pathlib import Path

from components.parsers import final_number
from metaharness.errors import TaskError
from metaharness.tasks.calculator import calculator_environment
from metaharness.tasks.prepare import (
    Rows,
    find_file,
    prepare_catalogue,
    prepare_files,
)
from metaharness.tasks.scorers import number_match
from metaharness.tasks.splits import fitting_sizes, make_splits
from metaharness.tasks.task import Item, SplitSizes, Task, fingerprint

URL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/master/"
    "grade_school_math/data/"
)
SIZES = SplitSizes(pool=64, train=1024, validation=256, test=1319)
# "<<48/2=24>>": marks for a calculator, not part of the solution's text.
_MARKS = re.compile(r"<<[^<>\n]*>>")


def load_gsm8k(*, data_dir: Path | None, seed: int, sizes: SplitSizes | None) -> Task:
    """GSM8K; test items come from the official test split, all others from train.

    The answer is the whole solution without calculator marks, its last line
    "#### N"; scored by equality of the final number; a calculator is at hand in
    episodes. data_dir: folder that holds gsm8k/train.jsonl and gsm8k/test.jsonl (or
    .jsonl.gz, or without the subfolder); None reads the prepared copy, downloaded by
    TFDS's own builder at the first use.

    Raises TaskError when the data is neither there nor to be had.
    """
    if data_dir is None:
        rows, source = _download(), "tensorflow-datasets gsm8k 1.0.0"
    else:
        files = {}
        for split in ("train", "test"):
            path = find_file(data_dir, "gsm8k", split)
            if path is None:
                raise TaskError(_missing(f"no {split}.jsonl in {data_dir}", data_dir))
            files[split] = path
        from metaharness.tasks.builders import MetaharnessGsm8k

        rows, digest = prepare_files("gsm8k", MetaharnessGsm8k, files)
        source = f"local files, SHA-256 of their rows {digest}"
    official = {
        split: [_item(split, row) for row in rows[split]] for split in ("train", "test")
    }
    wanted = sizes or fitting_sizes(official, SIZES)
    splits = make_splits("gsm8k", official, wanted, seed, at_most=sizes is None)
    return Task(
        name="gsm8k",
        **splits,
        scorer=number_match,
        max_new_tokens=320,
        # a chat model leaves blank lines between its steps: they end nothing
        stop=("\nQuestion:",),
        fingerprint=fingerprint(splits),
        source=f"GSM8K, {source}, seed {seed}",
        environment=calculator_environment(number_match),
    )


def _item(split: str, row: dict[str, str]) -> Item:
    answer = _MARKS.sub("", row["answer"]).strip()
    number = final_number(answer) if "####" in answer else None
    if number is None:
        raise TaskError(
            f"gsm8k {split} question {row['question'][:40]!r}: expected an answer with "
            "a line '#### N', got none; repair the file."
        )
    uid = hashlib.sha256(row["question"].encode()).hexdigest()[:10]
    return Item(f"gsm8k/{split}/{uid}", row["question"].strip(), answer)


def _download() -> Rows:
    def make():
        from tensorflow_datasets.text.gsm8k.gsm8k import Gsm8k

        return Gsm8k

    try:
        return prepare_catalogue("gsm8k", make, URL + "test.jsonl")
    except ConnectionError as error:
        raise TaskError(_missing(str(error), Path("DIR"))) from error


def _missing(reason: str, folder: Path) -> str:
    return (
        f"gsm8k: expected its data, got {reason}; fetch {URL}train.jsonl and "
        f"{URL}test.jsonl into {folder / 'gsm8k'}/ and pass --data-dir {folder}"
    )
