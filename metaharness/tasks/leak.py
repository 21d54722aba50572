"""Leak guard: no exemplar is a copy, or nearly one, of an item that is evaluated.

Items of one task may share most of their text (an instruction, a frame), so that any
two look alike. Two measures keep that from counting as a leak. What the evaluated items
share is removed first: how all of them begin and end, and runs of `GRAM` tokens that
`SHARED` of them contain. And the evaluated items, which are different problems, judge
the criterion: where it finds too many of them alike among themselves, it says nothing
about this task, and only equal questions count (families that vary a number or a grid
cell inside a fixed text).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from metaharness.errors import TaskError
from metaharness.tasks.normal import normal_question, split_normal

GRAM = 3
# Only runs of words are removed: in grids and number lists any run is the problem.
GRAM_WORDS = 2
SHARED = 0.95
# Fewer items than this share their text by chance: nothing is removed.
MIN_ITEMS = 8
SIMILARITY = 0.9
# A remainder with fewer words, or words fewer among its tokens, must be equal: in
# "5, 2, 1, 0" and on a board one token is the problem.
MIN_WORDS = 10
WORD_SHARE = 0.25
# The criterion is void where more evaluated items than this have a look-alike.
MAX_ALIKE = 0.02
NUM_PROBES = 256
# Rare tokens that a text must have in common to be compared at all (see `_candidates`).
HITS = 4

Tokens = tuple[str, ...]


class Question(Protocol):
    """A task's item or an exemplar."""

    @property
    def uid(self) -> str: ...

    @property
    def question(self) -> str: ...

    @property
    def answer(self) -> str: ...


@dataclass(frozen=True)
class Leak:
    """One finding: the pool item, the evaluated item, and how alike they are.

    similarity: 1 - token edits / tokens of the longer remainder, in [`SIMILARITY`, 1];
    1 also for questions equal in normal form.
    """

    pool_uid: str
    evaluated_uid: str
    similarity: float


def find_leaks(
    pool: Sequence[Question], evaluated: Sequence[Question]
) -> tuple[Leak, ...]:
    """Pool items that copy an evaluated item, exactly or nearly; the closest one each.

    evaluated: items of one task. Equal normal forms always count. Unless the criterion
    is void (see above), so do equal remainders (text less what the evaluated items
    share), an equal remainder inside a frame that was changed a little, and remainders
    of similarity `SIMILARITY` that are mostly words; those not where numbers and
    answers both differ, which makes another problem in nearly the same words.
    """
    by_normal: dict[str, Question] = {}
    for item in evaluated:
        by_normal.setdefault(normal_question(item.question), item)
    index = _Index(tuple(by_normal))
    originals = tuple(by_normal.values())
    leaks = []
    for item in pool:
        normal = normal_question(item.question)
        if normal in by_normal:
            leaks.append(Leak(item.uid, by_normal[normal].uid, 1.0))
        elif not index.void:
            found = index.closest(
                split_normal(normal), partial(_same_problem, item, originals)
            )
            if found:
                position, similarity = found
                leaks.append(Leak(item.uid, originals[position].uid, similarity))
    return tuple(leaks)


def check_leaks(
    pool: Sequence[Question], evaluated: Sequence[Question], *, split: str = "test"
) -> None:
    """Refuse a pool of which an item is in the evaluated split.

    Raises TaskError that names both items of the closest finding.
    """
    leaks = find_leaks(pool, evaluated)
    if not leaks:
        return
    worst = max(leaks, key=lambda leak: leak.similarity)
    what = "equal to" if worst.similarity == 1.0 else "nearly equal to"
    more = f" and {len(leaks) - 1} more like it" if len(leaks) > 1 else ""
    raise TaskError(
        f"leak guard: expected no exemplar from the {split} split, got pool item "
        f"{worst.pool_uid!r} {what} {split} item {worst.evaluated_uid!r} (similarity "
        f"{worst.similarity:.2f}){more}; remove it from the pool."
    )


class _Index:
    """The evaluated questions without their shared text, searchable by similarity."""

    def __init__(self, normals: Sequence[str]) -> None:
        self._texts = [split_normal(normal) for normal in normals]
        self._begin, self._end = _common_ends(self._texts)
        self._shared = _shared_grams(self._texts)
        self._rests = [self._remainder(text) for text in self._texts]
        self._counts = [Counter(rest) for rest in self._rests]
        # by first token: where a text of that length may begin
        self._framed_lengths: dict[str, set[int]] = defaultdict(set)
        self._equal: dict[Tokens, list[int]] = defaultdict(list)
        self._postings: dict[str, list[int]] = defaultdict(list)
        for position, rest in enumerate(self._rests):
            self._equal[rest].append(position)
            if rest and len(rest) < len(self._texts[position]):
                self._framed_lengths[rest[0]].add(len(rest))
            for token in set(rest):
                self._postings[token].append(position)
        self.void = self._is_void()

    def closest(
        self, text: Tokens, counts: Callable[[int], bool], but: int = -1
    ) -> tuple[int, float] | None:
        """Position and similarity of the most similar text, None if none is alike.

        counts: whether a text at a position counts if it is nearly, not fully, alike.
        but: a position that never counts.
        """
        rest = self._remainder(text)
        if not rest:
            return None
        twins = [p for p in self._equal.get(rest, ()) if p != but]
        if twins:
            return twins[0], 1.0
        best = self._reframed(text, rest, but)
        if best is None and _is_prose(rest):
            for position in self._candidates(rest):
                similarity = 0.0
                if position != but and _is_prose(self._rests[position]):
                    similarity = _similarity(rest, self._rests[position])
                better = best is None or similarity > best[1]
                if similarity >= SIMILARITY and better and counts(position):
                    best = (position, similarity)
        return best

    def _remainder(self, text: Tokens) -> Tokens:
        """Tokens that the evaluated items do not share, in order."""
        kept = [True] * len(text)
        if text[: len(self._begin)] == self._begin:
            kept[: len(self._begin)] = [False] * len(self._begin)
        if text[len(text) - len(self._end) :] == self._end:
            kept[len(text) - len(self._end) :] = [False] * len(self._end)
        for start in range(len(text) - GRAM + 1):
            if text[start : start + GRAM] in self._shared:
                kept[start : start + GRAM] = [False] * GRAM
        return tuple(t for t, keep in zip(text, kept, strict=True) if keep)

    def _reframed(
        self, text: Tokens, rest: Tokens, but: int
    ) -> tuple[int, float] | None:
        # One edit of a frame uncovers up to 2 GRAM - 1 of its tokens, which then stand
        # beside what is left of the question; all of them must be words.
        most = (2 * GRAM - 1) * int((1.0 - SIMILARITY) * len(text) + 1.0)
        for start, token in enumerate(rest):
            for length in sorted(self._framed_lengths.get(token, ())):
                fits = start + length <= len(rest)
                if not fits or not len(rest) - most <= length < len(rest):
                    continue
                for position in self._equal.get(rest[start : start + length], ()):
                    extra = rest[:start] + rest[start + length :]
                    if position == but or _num_words(extra) < len(extra):
                        continue
                    similarity = _similarity(text, self._texts[position])
                    if similarity >= SIMILARITY:
                        return position, similarity
        return None

    def _candidates(self, rest: Tokens) -> list[int]:
        # Of its tokens at most `limit` have no partner in a text that is similar enough
        # (which is longer by 1 / SIMILARITY at most), so `HITS` of the limit + HITS
        # rarest have one.
        limit = int((1.0 / SIMILARITY - 1.0) * len(rest) + 1e-9)
        rarest = sorted(rest, key=lambda token: len(self._postings.get(token, ())))
        hits: Counter[int] = Counter()
        for token, num in Counter(rarest[: limit + HITS]).items():
            for position in self._postings.get(token, ()):
                hits[position] += num
        found = [position for position, num in hits.items() if num >= HITS]
        count = Counter(rest)
        return sorted(p for p in found if self._may_be_similar(count, len(rest), p))

    def _may_be_similar(self, count: Counter[str], length: int, position: int) -> bool:
        # Similarity is at most overlap / longer length, overlap counted with repeats.
        least = SIMILARITY * max(length, len(self._rests[position])) - 1e-9
        if min(length, len(self._rests[position])) < least:
            return False
        other = self._counts[position]
        common = sum(min(n, other[t]) for t, n in count.items() if t in other)
        return common >= least

    def _is_void(self) -> bool:
        stride = max(1, len(self._rests) // NUM_PROBES)
        probes = range(0, len(self._rests), stride)
        most = max(2, MAX_ALIKE * len(probes))
        num_alike = 0
        for position in probes:
            found = self.closest(self._texts[position], lambda _: True, but=position)
            num_alike += found is not None
            if num_alike > most:
                return True
        return False


def _same_problem(item: Question, others: Sequence[Question], position: int) -> bool:
    other = others[position]
    numbers = [
        [t for t in split_normal(normal_question(q)) if t[0].isdigit()]
        for q in (item.question, other.question)
    ]
    answers = [normal_question(a) for a in (item.answer, other.answer)]
    return numbers[0] == numbers[1] or answers[0] == answers[1]


def _num_words(text: Tokens) -> int:
    return sum(len(token) > 1 and token[0].isalpha() for token in text)


def _is_prose(text: Tokens) -> bool:
    num_words = _num_words(text)
    return num_words >= MIN_WORDS and num_words >= WORD_SHARE * len(text)


def _common_ends(texts: Sequence[Tokens]) -> tuple[Tokens, Tokens]:
    """How all texts begin and how all end, without overlap in the shortest."""
    if len(texts) < MIN_ITEMS:
        return (), ()
    shortest = min(texts, key=len)
    ends = []
    room = len(shortest)
    for step in (1, -1):
        num = 0
        while num < room and len({text[::step][num] for text in texts}) == 1:
            num += 1
        room -= num
        ends.append(shortest[:num] if step == 1 else shortest[len(shortest) - num :])
    return ends[0], ends[1]


def _shared_grams(texts: Sequence[Tokens]) -> frozenset[Tokens]:
    if len(texts) < MIN_ITEMS:
        return frozenset()
    count: Counter[Tokens] = Counter()
    for text in texts:
        count.update({text[i : i + GRAM] for i in range(len(text) - GRAM + 1)})
    least = SHARED * len(texts)
    return frozenset(
        g for g, num in count.items() if num >= least and _num_words(g) >= GRAM_WORDS
    )


def _similarity(a: Tokens, b: Tokens) -> float:
    """1 - edit distance / longer length (Levenshtein); 0 when below `SIMILARITY`."""
    longer = max(len(a), len(b))
    limit = int((1.0 - SIMILARITY) * longer + 1e-9)
    if abs(len(a) - len(b)) > limit:
        return 0.0
    far = limit + 1
    row = [min(j, far) for j in range(len(b) + 1)]
    for i, token in enumerate(a, start=1):
        previous, row = row, [far] * (len(b) + 1)
        row[0] = min(i, far)
        for j in range(max(1, i - limit), min(len(b), i + limit) + 1):
            swap = previous[j - 1] + (token != b[j - 1])
            row[j] = min(swap, previous[j] + 1, row[j - 1] + 1, far)
        if min(row) == far:
            return 0.0
    return 0.0 if row[-1] == far else 1.0 - row[-1] / longer
