"""reasoning-gym families as tasks: generated items with the package's own scorer."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from metaharness.errors import TaskError
from metaharness.runlog.progress import Progress
from metaharness.tasks.cache import prepared
from metaharness.tasks.normal import normal_question
from metaharness.tasks.splits import ORDER, take_clean
from metaharness.tasks.task import (
    SPLITS,
    Item,
    Scorer,
    SplitSizes,
    Task,
    answer_limits,
    fingerprint,
)

PACKAGE = "reasoning-gym"
# Changes when the same seed would give other items.
FORMAT = 1
# CPU seconds an item, where it is enough to be noticed.
SLOW_S = {
    "futoshiki": 0.8,
    "intermediate_integration": 0.2,
    "knight_swap": 1.0,
    "puzzle24": 0.3,
    "rubiks_cube": 0.2,
    "sokoban": 0.4,
    "zebra_puzzles": 0.5,
}
# Families that cannot be tasks as they are, and why.
UNFIT = {
    "boxnet": "it stores no gold answer",
    "composite": "it has no default configuration",
    "graph_color": "it stores no gold answer",
    "propositional_logic": "it stores no gold answer",
    "rush_hour": "it stores no gold answer",
}
# Most draws for one item of a split.
DRAWS = 8
WORKER = Path(__file__).with_name("generate.py")


def family_names() -> tuple[str, ...]:
    """The families that can be tasks; none when reasoning-gym is not installed.

    Imports reasoning-gym (about a second).
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        return ()
    from reasoning_gym.factory import DATASETS

    return tuple(sorted(set(DATASETS) - set(UNFIT)))


def load_generated(family: str, *, seed: int, sizes: SplitSizes | None) -> Task:
    """The family's items at its default configuration.

    Every split draws from a seed of its own; questions equal in normal form and items
    that the leak guard finds in the test split are drawn again. sizes: None takes the
    default sizes, all scaled down together where the family has too few distinct
    questions; sizes that were asked for are met or refused.

    Raises TaskError.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise TaskError(
            f"task {family!r}: expected the package {PACKAGE}, got none; "
            "pip install 'metaharness[embedded]'"
        )
    if family in UNFIT:
        raise TaskError(
            f"task {family!r}: expected a family with one gold answer a question, but "
            f"{UNFIT[family]}; choose another family."
        )
    version = importlib.metadata.version(PACKAGE)
    wanted = sizes or SplitSizes()
    what = [FORMAT, family, version, seed, wanted.as_dict(), sizes is None]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

    def prepare(folder: Path) -> None:
        splits = _generate(family, seed, wanted, may_shrink=sizes is None)
        rows = [
            [split, item.uid, item.question, item.answer, item.meta]
            for split in SPLITS
            for item in splits[split]
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "items.jsonl").write_text(lines, encoding="utf-8")

    folder = prepared(f"generated/{family}-{digest}", prepare)
    splits: dict[str, list[Item]] = {split: [] for split in SPLITS}
    with open(folder / "items.jsonl", encoding="utf-8") as lines:
        for line in lines:
            split, uid, question, answer, meta = json.loads(line)
            splits[split].append(Item(uid, question, answer, meta))
    max_new_tokens, stop = answer_limits(splits["pool"] + splits["train"])
    return Task(
        name=family,
        **{split: tuple(rows) for split, rows in splits.items()},
        scorer=family_scorer(family),
        max_new_tokens=max_new_tokens,
        stop=stop,
        fingerprint=fingerprint(splits),
        source=f"{PACKAGE} {version}, family {family}, default configuration, "
        f"seed {seed}",
    )


def family_scorer(family: str) -> Scorer:
    """Score of a generated text by the family's own `score_answer`, in [0, 1].

    Some families give partial credit; `>= 0.99` means right. A text that the family's
    scorer cannot digest scores 0. reasoning-gym is imported at the first call.
    """
    own: list[Any] = []

    def score(text: str, item: Item) -> float:
        if not own:
            import reasoning_gym

            own.append(reasoning_gym.get_score_answer_fn(family))
        entry = {
            "question": item.question,
            "answer": item.answer,
            "metadata": decode(item.meta["metadata"]),
        }
        try:
            value = float(own[0](text.strip(), entry))
        except Exception:  # the text is a model's: anything may be in it
            return 0.0
        return min(1.0, max(0.0, value)) if value == value else 0.0

    return score


def decode(value: Any) -> Any:
    """The value that `generate.encode` stored."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if isinstance(value, dict):
        if "!tuple" in value:
            return tuple(decode(v) for v in value["!tuple"])
        if "!fraction" in value:
            return Fraction(*value["!fraction"])
        if "!dict" in value:
            return {decode(k): decode(v) for k, v in value["!dict"]}
        return {k: decode(v) for k, v in value.items()}
    return value


class _Worker:
    """Process that generates the items of one family; see `generate.py`."""

    def __init__(self, family: str) -> None:
        environment = dict(os.environ)
        environment["PYTHONHASHSEED"] = "0"
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        self.family = family
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), family],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def entries(self, seed: int, most: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Index and entry of the items of one seed; those that fail are passed over."""
        assert self._process.stdin and self._process.stdout
        failed = 0
        for index in range(most):
            try:
                self._process.stdin.write(f"{seed} {index}\n")
                self._process.stdin.flush()
                reply = json.loads(self._process.stdout.readline() or "null")
            except BrokenPipeError:
                reply = None
            if reply is None:
                raise TaskError(
                    f"task {self.family!r}: expected items from {PACKAGE}, but its "
                    f"process ended (exit status {self._process.wait()}); run "
                    f"`python {WORKER} {self.family}` to see why."
                )
            if "entry" in reply:
                yield index, reply["entry"]
                continue
            failed += 1
            if failed > 20 and failed > index // 2:
                raise TaskError(
                    f"task {self.family!r}: expected items from {PACKAGE}, got "
                    f"{reply['error']}; choose another family."
                )


def split_seed(family: str, seed: int, split: str) -> int:
    """Seed of one split, far from all others, below 2**31."""
    text = f"{family}/{seed}/{split}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def _generate(
    family: str, seed: int, sizes: SplitSizes, *, may_shrink: bool
) -> dict[str, list[Item]]:
    with (
        Progress(f"generating {family}", total=sizes.total) as progress,
        _Worker(family) as worker,
    ):
        while True:
            splits, num_distinct = _draw(worker, seed, sizes, progress)
            if all(len(splits[s]) == n for s, n in sizes.as_dict().items()):
                return splits
            share = 0.75 * num_distinct / sizes.total
            smaller = {s: int(share * n) for s, n in sizes.as_dict().items()}
            if not may_shrink or min(smaller.values()) < 4:
                raise TaskError(
                    f"task {family!r}: expected {sizes.total} distinct items, got "
                    f"{num_distinct} (the family has few different questions); ask for "
                    "smaller splits."
                )
            sizes = SplitSizes(**smaller)


def _draw(
    worker: _Worker, seed: int, sizes: SplitSizes, progress: Progress
) -> tuple[dict[str, list[Item]], int]:
    """Splits filled as far as possible, and how many distinct questions were seen."""
    seen: set[str] = set()
    splits: dict[str, list[Item]] = {}
    for split in ORDER:
        number = getattr(sizes, split)
        base = split_seed(worker.family, seed, split)
        done = sum(map(len, splits.values()))
        taken: list[Item] = []
        fresh: list[Item] = []
        for index, entry in worker.entries(base, DRAWS * number + 64):
            item = Item(
                uid=f"{worker.family}/{base + index}",
                question=entry["question"],
                answer=str(entry["answer"]),
                meta={"metadata": entry["metadata"]},
            )
            normal = normal_question(item.question)
            if normal in seen or not item.answer.strip():
                continue
            seen.add(normal)
            fresh.append(item)
            if len(taken) + len(fresh) == number:
                taken += take_clean(fresh, number, splits.get("test", ()))[0]
                fresh = []
            progress.update(done + len(taken) + len(fresh))
            if len(taken) == number:
                break
        splits[split] = taken
    return splits, len(seen)
