"""What a task is: four fixed, disjoint splits of items and a way to score an answer."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from metaharness.errors import TaskError

if TYPE_CHECKING:
    from metaharness.tasks.environment import EnvironmentMaker

SPLITS = ("pool", "train", "validation", "test")


@dataclass(frozen=True)
class Item:
    """One question with its gold answer.

    uid: unique within the task and stable between runs; meta: whatever the scorer needs
    besides the answer, JSON-safe.
    """

    uid: str
    question: str
    answer: str
    meta: Mapping[str, Any] = field(default_factory=dict, hash=False)


Scorer = Callable[[str, Item], float]


@dataclass(frozen=True)
class SplitSizes:
    """How many items each split takes; each at least 1.

    pool: candidates for exemplars; train: items that the search learns from;
    validation: items that decide between harnesses; test: read once, at the end.
    """

    pool: int = 64
    train: int = 256
    validation: int = 128
    test: int = 256

    def __post_init__(self) -> None:
        for split in SPLITS:
            if getattr(self, split) < 1:
                raise TaskError(
                    f"split sizes: expected at least 1 item in {split!r}, "
                    f"got {getattr(self, split)}; ask for 1 or more."
                )

    @property
    def total(self) -> int:
        return self.pool + self.train + self.validation + self.test

    def as_dict(self) -> dict[str, int]:
        return {split: getattr(self, split) for split in SPLITS}


@dataclass(frozen=True)
class Task:
    """A task, ready to use.

    pool, train, validation, test: disjoint, each in a fixed order. scorer: reward in
    [0, 1] of a generated text, total in the text (one that runs code raises
    SandboxError on a machine that cannot isolate it), None where there is no grading.
    max_new_tokens, stop: how long an answer may get and the texts that end
    it. fingerprint: SHA-256 over the content and order of all four splits. source:
    where the items come from, with version or digest. environment: makes the tools and
    the state around an item, whose own grade then takes the scorer's place in an
    episode; None where there are none. instructions: what every prompt of an episode
    says before anything else, in its system turn (a domain's policy), "" for nothing.
    """

    name: str
    pool: tuple[Item, ...]
    train: tuple[Item, ...]
    validation: tuple[Item, ...]
    test: tuple[Item, ...]
    scorer: Scorer | None
    max_new_tokens: int
    stop: tuple[str, ...]
    fingerprint: str
    source: str
    environment: "EnvironmentMaker | None" = None
    instructions: str = ""

    def splits(self) -> dict[str, tuple[Item, ...]]:
        """The four splits by name, in the order of `SPLITS`."""
        return {split: getattr(self, split) for split in SPLITS}


@dataclass(frozen=True)
class TaskInfo:
    """One line of the list of tasks.

    kind: "dataset", "generated" or "file"; note: size, data source, what is special.
    """

    name: str
    kind: str
    note: str


def fingerprint(splits: Mapping[str, Iterable[Item]]) -> str:
    """SHA-256 (hex) over split names, item order, uids, questions and answers."""
    digest = hashlib.sha256()
    for split in SPLITS:
        rows = [[item.uid, item.question, item.answer] for item in splits[split]]
        digest.update(json.dumps([split, rows], ensure_ascii=True).encode())
    return digest.hexdigest()


def answer_limits(items: Sequence[Item]) -> tuple[int, tuple[str, ...]]:
    """`max_new_tokens` and `stop` that let every gold answer of these items through.

    A token holds at least one byte, so an answer's bytes bound its tokens; the bound is
    kept within [16, 512]. The answer ends at a line break, or at an empty line where
    gold answers have several lines, or nowhere where they have empty lines.
    """
    longest = max(len(item.answer.encode()) for item in items)
    stop: tuple[str, ...] = ("\n",)
    if any("\n" in item.answer.strip() for item in items):
        blank = any("\n\n" in item.answer.strip() for item in items)
        stop = () if blank else ("\n\n",)
    return min(512, max(16, longest + 4)), stop
