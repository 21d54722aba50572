"""The grid of a sweep: models x tasks x methods x seeds, from one TOML file.

    seeds = [0, 1]

    [settings]                    # of every task that does not say otherwise
    limit = 64                    # items of the split, the first ones
    samples = 1                   # episodes of each harness and item
    temperature = 0.0
    split = "test"
    dtype = "float32"
    tokens_at_once = 16384        # of one batch of generation
    harness = "default"           # the task's own file, or the path of one
    data_dir = "data"

    [models.small]
    path = "smollm2-135m"         # as load_model takes it; "$NAME" is read from the
                                  # environment

    [tasks.gsm8k]                 # a name that load_task knows ...
    limit = 1319

    [tasks.parcels]               # ... or any, with what load_task shall load
    task = "parcels.jsonl"
    harness = "parcels.toml"

    [methods.zero_shot]           # the bare question
    [methods.default]             # the first candidate of every slot
    [methods.random]
    num = 4                       # harnesses drawn from the pools
    [methods.learned.train]       # fields of TrainConfig by path
    search.measured_steps = 8

A method of another name says its ``kind``; default, random and learned also take a
``harness``. Paths are relative to the grid's file, but a model's. Every error is one
line: `path:line: expected ..., got ...; remedy`.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.sweep_fields import WORDS, beside, fits, overridden
from metaharness.errors import InputError
from metaharness.harness.defaults import DEFAULT, default_harness_file
from metaharness.harness.toml_source import TomlSource
from metaharness.runlog.jsonfile import leaves
from metaharness.train.config import TrainConfig
from metaharness.train.config_file import as_data
from metaharness.train.evaluate import SPLITS
from metaharness.train.ranges import check_name, check_range

# kind -> the keys that its table may have
KINDS: dict[str, tuple[str, ...]] = {
    "zero_shot": ("kind",),
    "default": ("kind", "harness"),
    "random": ("kind", "harness", "num"),
    "learned": ("kind", "harness", "train"),
}
_PARTS = ("seeds", "settings", "models", "tasks", "methods")
# Decided by the cell, not by its method.
_CELLS_OWN = frozenset(
    {"task", "model", "harness", "data_dir", "out", "seed", "dtype", "quiet"}
)
_FREE = ("data_dir", "tokens_at_once", "harness")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_FILES = (".jsonl", ".jsonl.gz", ".json")


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How a task is evaluated; see the module."""

    limit: int = 64
    samples: int = 1
    temperature: float = 0.0
    split: str = "test"
    dtype: str = "float32"
    tokens_at_once: int = 16384
    harness: Path = Path(DEFAULT)
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "samples", "tokens_at_once"):
            check_range(name, getattr(self, name), 1)
        check_range("temperature", self.temperature, 0, 10)
        check_name("split", self.split, SPLITS)
        check_name("dtype", self.dtype, ("float32", "bfloat16"))
        if self.samples > 1 and self.temperature == 0:
            raise InputError(
                f"temperature: expected one above 0 for {self.samples} samples, got 0 "
                "(greedy texts are all the same); set it, or take 1 sample"
            )


class Method(NamedTuple):
    """kind: of ``KINDS``; num: random harnesses; harness: None takes the task's; train:
    of a learned one."""

    name: str
    kind: str
    num: int
    harness: Path | None
    train: TrainConfig


class Cell(NamedTuple):
    """One number of the sweep.

    model_path: None where its variable is not set; source: what load_task shall load.
    """

    model: str
    model_path: str | None
    task: str
    source: str
    settings: TaskSettings
    method: Method
    seed: int

    @property
    def id(self) -> str:
        return f"{self.model}/{self.task}/{self.method.name}/seed-{self.seed}"

    @property
    def harness_file(self) -> Path | None:
        """The harness file; None for the bare question. Raises HarnessError."""
        if self.method.kind == "zero_shot":
            return None
        path = self.method.harness or self.settings.harness
        return default_harness_file(self.source) if str(path) == DEFAULT else path

    def identity(self) -> dict[str, Any]:
        """What the grid says that decides the cell's number, as plain JSON.

        Contents of data and weights are checked by their digests when it runs. Of the
        training only what is not the default: a field that a later version adds must
        not part it from its cells. Raises HarnessError, OSError.
        """
        own = dataclasses.asdict(self.settings)
        file = self.harness_file
        plain = dict(leaves(as_data(TrainConfig())))
        return {
            "model": self.model_path,
            "task": Path(self.source).name,
            "seed": self.seed,
            **{name: value for name, value in own.items() if name not in _FREE},
            "method": self.method.kind,
            "num": self.method.num if self.method.kind == "random" else None,
            "harness_sha256": file and hashlib.sha256(file.read_bytes()).hexdigest(),
            "train": {
                name: value
                for name, value in leaves(as_data(self.method.train))
                if value != plain[name]
            },
        }


def read_grid(
    path: Path, *, models: Mapping[str, str], data_dir: Path | None = None
) -> list[Cell]:
    """The cells of a grid, those of one model and type of weights together.

    models: name -> path, before the file's own; data_dir: of tasks that name none.

    Raises InputError (HarnessError for what the file says).
    """
    if not path.is_file():
        raise InputError(f"{path}: expected a grid file, got none; check the path")
    source = TomlSource(path)
    source.known((), source.data, _PARTS, "part")
    tables = {name: _tables(source, name) for name in ("models", "tasks", "methods")}
    for name in models:
        if name not in tables["models"]:
            known = ", ".join(tables["models"])
            raise InputError(
                f"model: expected one of {known}, got {name!r}; correct it"
            )
    common = TaskSettings(data_dir=data_dir)
    if "settings" in source.data:
        table = source.data["settings"]
        common = overridden(source, ("settings",), table, common)
    paths = {
        name: models.get(name) or _model_path(source, name, table)
        for name, table in tables["models"].items()
    }
    tasks = [_task(source, *named, common) for named in tables["tasks"].items()]
    methods = [_method(source, *named) for named in tables["methods"].items()]
    cells = [
        Cell(model, paths[model], *task, method, seed)
        for model in paths
        for task in tasks
        for method in methods
        for seed in _seeds(source)
    ]
    for cell in cells:
        file = cell.harness_file
        if file and not file.is_file():
            raise InputError(
                f"{file}: expected a harness file, got none; correct the path"
            )
    order = list(paths)
    return sorted(cells, key=lambda c: (order.index(c.model), c.settings.dtype))


def _tables(source: TomlSource, part: str) -> dict[str, dict[str, Any]]:
    found = source.data.get(part)
    if not isinstance(found, dict) or not found:
        source.fail((part,), f"tables [{part}.NAME]", found, "write one.")
    for name, table in found.items():
        if not isinstance(table, dict):
            source.fail((part, name), f"a table [{part}.{name}]", table, "write one.")
        if not _NAME.fullmatch(name):
            expected = "a name of letters, digits, '.', '_', '+' and '-'"
            source.fail((part, name), expected, name, "it names a folder.")
    return found


def _model_path(source: TomlSource, name: str, table: dict[str, Any]) -> str | None:
    at = ("models", name)
    source.known(at, table, ("path",), "option")
    path = table.get("path")
    if not fits(Path, path):
        source.fail((*at, "path"), "a path or name in quotes", path, "write it.")
    path = os.path.expandvars(path)
    return None if "$" in path else path


def _task(
    source: TomlSource, name: str, table: dict[str, Any], common: TaskSettings
) -> tuple[str, str, TaskSettings]:
    at = ("tasks", name)
    fields = tuple(field.name for field in dataclasses.fields(TaskSettings))
    source.known(at, table, ("task", *fields), "option")
    loads = table.get("task", name)
    if not fits(Path, loads):
        source.fail((*at, "task"), "a name or a file in quotes", loads, "write it.")
    if loads.endswith(_FILES):
        loads = str(source.path.parent / loads)
    own = {field: value for field, value in table.items() if field != "task"}
    return name, loads, overridden(source, at, own, common)


def _method(source: TomlSource, name: str, table: dict[str, Any]) -> Method:
    at = ("methods", name)
    kind = table.get("kind", name)
    if kind not in KINDS:
        known = ", ".join(KINDS)
        source.fail((*at, "kind"), f"a kind among {known}", kind, "say the kind.")
    source.known(at, table, KINDS[kind], "option")
    num = source.number(at, table, "num", least=1) if "num" in table else 4
    harness = table.get("harness")
    if harness is not None:
        if not fits(Path, harness):
            source.fail((*at, "harness"), WORDS[Path], harness, "correct it.")
        harness = beside(source, harness)
    train = TrainConfig()
    if "train" in table:
        train = overridden(
            source, (*at, "train"), table["train"], train, hidden=_CELLS_OWN
        )
    return Method(name, kind, num, harness, train)


def _seeds(source: TomlSource) -> list[int]:
    seeds = source.data.get("seeds", [0])
    whole = isinstance(seeds, list) and all(fits(int, s) and s >= 0 for s in seeds)
    if not whole or not seeds or len(set(seeds)) != len(seeds):
        source.fail(("seeds",), "different whole numbers", seeds, "write [0], say.")
    return seeds
