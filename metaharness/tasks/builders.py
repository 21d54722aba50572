"""TFDS builders over local files, prepared as array_record without TensorFlow.

The catalogue's own builders download at preparation; these read files that are there.
Importing this module registers the builders' names with TFDS.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

# TensorFlow is needed for TFDS's default format; this one is read without it.
FILE_FORMAT = "array_record"


class _LocalJsonl(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Rows of one JSON-lines file a split, all fields text.

    files: path by split name. fields: the fields to keep; a row must have them all.
    """

    VERSION = tfds.core.Version("1.0.0")
    FIELDS: tuple[str, ...] = ()

    def __init__(self, *, files: dict[str, Path], data_dir: Path) -> None:
        self._files = files
        super().__init__(data_dir=data_dir, file_format=FILE_FORMAT)

    def _info(self) -> tfds.core.DatasetInfo:
        text = {field: tfds.features.Text() for field in self.FIELDS}
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(text))

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
        del dl_manager
        return {s: self._generate_examples(path) for s, path in self._files.items()}

    def _generate_examples(self, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                if line.strip():
                    row = json.loads(line)
                    yield number, {field: row[field] for field in self.FIELDS}


class MetaharnessGsm8k(_LocalJsonl):
    """GSM8K (Cobbe et al. 2021) from local files; not the catalogue's `gsm8k`."""

    FIELDS = ("question", "answer")


class MetaharnessHumaneval(_LocalJsonl):
    """HumanEval (Chen et al. 2021) from its one file."""

    FIELDS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


class _Passages(_LocalJsonl, skip_registration=True):
    """Questions over paragraphs; answers and paragraphs are JSON in a text field."""

    FIELDS = ("id", "question", "answers", "paragraphs")


class MetaharnessHotpotqa(_Passages):
    """HotpotQA, distractor setting (Yang et al. 2018), from local files."""


class MetaharnessMusique(_Passages):
    """MuSiQue-Ans (Trivedi et al. 2022) from its one file."""


class MetaharnessSquad2(_Passages):
    """SQuAD 2.0 (Rajpurkar et al. 2018) from its one file."""


class MetaharnessMbpp(_LocalJsonl):
    """MBPP (Austin et al. 2021) from its one file; the tests are JSON in a field."""

    FIELDS = ("task_id", "text", "code", "tests", "setup")


class MetaharnessSvamp(_LocalJsonl):
    """SVAMP (Patel et al. 2021) from its one file."""

    FIELDS = ("id", "body", "question", "answer")


class MetaharnessIfeval(_LocalJsonl):
    """IFEval (Zhou et al. 2023) from its one file; lists are JSON in a field."""

    FIELDS = ("key", "prompt", "instructions", "arguments")
