"""Fixed, disjoint splits: the same items, sizes and seed give the same splits.

An item's place depends on a hash of the seed and its question, not on a generator's
stream, so that it does not move when other items are added or removed.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from metaharness.errors import TaskError
from metaharness.tasks.leak import find_leaks
from metaharness.tasks.normal import normal_question
from metaharness.tasks.task import SPLITS, Item, SplitSizes

# Splits are filled in this order: evaluation first, so that a larger training split
# never changes it.
ORDER = ("test", "validation", "pool", "train")


def distinct(items: Iterable[Item], seen: set[str] | None = None) -> list[Item]:
    """The first item of each question, equal after `normal_question`; order kept.

    seen: normalised questions that count as taken; grows.
    """
    seen = set() if seen is None else seen
    kept = []
    for item in items:
        question = normal_question(item.question)
        if question not in seen:
            seen.add(question)
            kept.append(item)
    return kept


def shuffled(items: Sequence[Item], seed: int) -> list[Item]:
    """Items in an order that looks random and depends on seed and question only."""

    def rank(item: Item) -> tuple[bytes, str, str]:
        text = f"{seed}\n{normal_question(item.question)}"
        return hashlib.sha256(text.encode()).digest(), item.question, item.answer

    return sorted(items, key=rank)


def fitting_sizes(
    official: Mapping[str, Sequence[Item]], most: SplitSizes
) -> SplitSizes:
    """Sizes for `make_splits` that these items can fill, each at most as in `most`.

    A split that is carved out gets at most a quarter of the items it is carved from,
    train what is left.
    """
    stock = len(distinct([*official.get("train", ()), *official.get("", ())]))
    sizes = {}
    left = stock
    for split in ORDER[:-1]:
        if split in official:
            sizes[split] = len(official[split])
        else:
            sizes[split] = max(1, stock // 4)
            left -= min(sizes[split], getattr(most, split))
    sizes["train"] = max(1, left)
    limits = most.as_dict()
    return SplitSizes(**{s: min(n, limits[s]) for s, n in sizes.items()})


def make_splits(
    name: str,
    official: Mapping[str, Sequence[Item]],
    sizes: SplitSizes,
    seed: int,
    *,
    at_most: bool = False,
) -> dict[str, tuple[Item, ...]]:
    """Four disjoint splits from items of which some already have a split.

    official: items by split name; the key "" holds items without one. A split named
    there takes its items from there only; the others are carved out of "train" and "".
    Repeated questions are used once, the test split's copy first; items that the leak
    guard finds in the test split are left out of the other three.

    at_most: take fewer items where there are fewer, at least one.

    Raises TaskError when a split cannot be filled.
    """
    seen: set[str] = set()
    stock: dict[str, list[Item]] = {}
    for split in (*ORDER, ""):
        if split in official:
            stock[split] = distinct(shuffled(official[split], seed), seen)
    common = stock.pop("train", []) + stock.pop("", [])
    splits: dict[str, tuple[Item, ...]] = {}
    for split in ORDER:
        source = stock.get(split, common)
        wanted = getattr(sizes, split)
        taken, left = take_clean(source, wanted, splits.get("test", ()))
        if len(taken) < (1 if at_most else wanted):
            raise TaskError(
                f"task {name!r}: expected {wanted} distinct items for {split!r}, got "
                f"{len(taken)}; ask for smaller splits or give more items."
            )
        splits[split] = tuple(taken)
        if split not in stock:
            common = left
    return {split: splits[split] for split in SPLITS}


def take_clean(
    source: Sequence[Item], wanted: int, test: Sequence[Item]
) -> tuple[list[Item], list[Item]]:
    """The first `wanted` items that the leak guard passes, and those not looked at."""
    taken: list[Item] = []
    position = 0
    while len(taken) < wanted and position < len(source):
        batch = source[position : position + wanted - len(taken)]
        position += len(batch)
        leaked = {leak.pool_uid for leak in find_leaks(batch, test)} if test else set()
        taken += [item for item in batch if item.uid not in leaked]
    return taken, list(source[position:])
