"""Questions over paragraphs: HotpotQA, MuSiQue and SQuAD 2.0.

A question shows its best paragraphs, so that its likelihood needs no tools; the
multi-hop tasks also have search tools over all of an item's paragraphs.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from components.matching import squad_normal
from metaharness.errors import TaskError
from metaharness.tasks.normal import normal_question
from metaharness.tasks.passages import ORIGINS, read_passages
from metaharness.tasks.prepare import Rows
from metaharness.tasks.scorers import normal_match, token_f1
from metaharness.tasks.search import (
    Paragraph,
    SearchEnvironment,
    closed_question,
    retrieve,
)
from metaharness.tasks.splits import ORDER, distinct, shuffled, take_clean
from metaharness.tasks.task import (
    SPLITS,
    Item,
    Scorer,
    SplitSizes,
    Task,
    fingerprint,
)

UNANSWERABLE = "unanswerable"
# Whole answers that count as "not known", in `squad_normal` form; so does no words.
ABSTENTIONS = frozenset(
    [UNANSWERABLE, "question is unanswerable", "this question is unanswerable"]
    + ["not answerable", "cannot be answered", "no answer", "unknown", "not known"]
    + ["i do not know", "i dont know", "not stated", "not mentioned", "not given"]
    + ["not enough information", "cannot be determined"]
)

# Nearly all gold answers are shorter.
MAX_NEW_TOKENS = 48
HOTPOTQA = SplitSizes(pool=64, train=1024, validation=100, test=300)
SQUAD2 = SplitSizes(pool=64, train=256, validation=64, test=256)
# The split of each article in turn.
_ARTICLES = ("test", "train", "validation", "pool", "test", "train", "test", "test")

Groups = dict[str, list[Item]]


def load_hotpotqa(
    *, data_dir: Path | None, seed: int, sizes: SplitSizes | None
) -> Task:
    """HotpotQA in the distractor setting (Yang et al. 2018), scored by token F1.

    Test and validation come from the development questions (by default three and one
    fifths of them, at most as in `HOTPOTQA`); pool, then train, from the training
    questions and, after them, from the development questions that are left. data_dir:
    folder that holds hotpotqa/dev500.jsonl and hotpotqa/train100.jsonl (or .jsonl.gz,
    or without the subfolder); there is no download.

    Of 500 and 100 questions: 64, 136, 100, 300. Questions with what they show have
    1,730 characters on average, 9,700 at most; 48% show both supporting paragraphs.

    Raises TaskError when the data is not there.
    """
    rows, digest = read_passages(
        "hotpotqa", data_dir, {"dev": "dev500", "train": "train100"}
    )
    seen: set[str] = set()
    dev = distinct(shuffled(_items("hotpotqa", "dev", rows), seed), seen)
    extra = distinct(shuffled(_items("hotpotqa", "train", rows), seed), seen)
    wanted = sizes or SplitSizes(
        pool=min(HOTPOTQA.pool, max(1, len(extra) * 2 // 3)),
        train=HOTPOTQA.train,
        validation=min(HOTPOTQA.validation, max(1, len(dev) // 5)),
        test=min(HOTPOTQA.test, max(1, len(dev) * 3 // 5)),
    )
    return _task(
        "hotpotqa",
        _multi_hop(dev, extra, wanted),
        wanted,
        token_f1,
        source=f"{digest}, seed {seed}",
        at_most=sizes is None,
        searches=True,
    )


def load_musique(*, data_dir: Path | None, seed: int, sizes: SplitSizes | None) -> Task:
    """MuSiQue-Ans (Trivedi et al. 2022), scored by an equal answer in normal form.

    One file of questions is cut into tenths: test 6, validation 2, pool 1, train 1; of
    its 100 that is 60, 20, 10 and 10. data_dir: folder that holds
    musique/train100.jsonl (or .jsonl.gz, or without the subfolder); there is no
    download.

    Questions with what they show have 1,770 characters on average, 3,500 at most; 22%
    show every supporting paragraph (two to four of twenty).

    Raises TaskError when the data is not there.
    """
    rows, digest = read_passages("musique", data_dir, {"train": "train100"})
    items = distinct(shuffled(_items("musique", "train", rows), seed))
    tenth = max(1, len(items) // 10)
    most = max(1, len(items) - 4 * tenth)
    wanted = sizes or SplitSizes(tenth, tenth, 2 * tenth, most)
    return _task(
        "musique",
        _multi_hop(items, (), wanted),
        wanted,
        normal_match,
        source=f"{digest}, seed {seed}",
        at_most=sizes is None,
        searches=True,
    )


def load_squad2(*, data_dir: Path | None, seed: int, sizes: SplitSizes | None) -> Task:
    """SQuAD 2.0 (Rajpurkar et al. 2018), half of it not answerable; `squad2_scorer`.

    Splits are cut by article, half of them test, so that no paragraph is in two; the
    unanswerable questions fall as they may (52% to 60% of a split). Within a split
    every paragraph is asked about once before any is asked about again: questions of
    one paragraph look alike to the leak guard, which, with many such pairs among the
    test items, would have nothing to say about this task. data_dir: folder that holds
    squad2/dev.jsonl (or .jsonl.gz, or without the subfolder); there is no download.

    Questions with their paragraph have 960 characters on average, 4,200 at most.

    Raises TaskError when the data is not there, or of fewer than four articles.
    """
    rows, digest = read_passages("squad2", data_dir, {"dev": "dev"})
    wanted = sizes or SQUAD2
    groups = {
        split: _spread(shuffled(items, seed))[: getattr(wanted, split)]
        for split, items in _by_article(_items("squad2", "dev", rows), seed).items()
    }
    return _task(
        "squad2",
        groups,
        wanted,
        squad2_scorer(),
        source=f"{digest}, seed {seed}",
        at_most=sizes is None,
        searches=False,
    )


def squad2_scorer(*, abstain_reward: float = 0.0) -> Scorer:
    """Token F1 in which saying that one does not know has a price.

    An unanswerable item (`meta["impossible"]`) gives 1.0 to an abstention, else 0.0. An
    answerable one gives its best F1, or `abstain_reward`, in [0, 1), to an abstention.
    0.0 is SQuAD 2.0's own score (Rajpurkar et al. 2018). An abstention is an answer
    without words or one of `ABSTENTIONS`, and nothing around it.

    Where a share u < 1 of the items is unanswerable, answering them all pays more than
    abstaining from them all just where the mean F1 of the answerable ones is above
    ``abstain_reward + u / (1 - u)``.

    Raises ValueError.
    """
    if not 0.0 <= abstain_reward < 1.0:
        raise ValueError(
            f"squad2 scorer: expected abstain_reward in [0, 1), got {abstain_reward}; "
            "an abstention must earn less than the answer."
        )

    def score(text: str, item: Item) -> float:
        abstains = is_abstention(text)
        if item.meta["impossible"]:
            return float(abstains)
        return max(token_f1(text, item), abstain_reward if abstains else 0.0)

    return score


def is_abstention(text: str) -> bool:
    """Whether an answer says that it is not known, or says nothing."""
    normal = squad_normal(text)
    return not normal or normal in ABSTENTIONS


def _task(
    name: str,
    groups: Groups,
    sizes: SplitSizes,
    scorer: Scorer,
    *,
    source: str,
    at_most: bool,
    searches: bool,
) -> Task:
    for split in ORDER:
        wanted, num = getattr(sizes, split), len(groups[split])
        if num < (1 if at_most else wanted):
            raise TaskError(
                f"task {name!r}: expected {wanted} distinct items for {split!r}, got "
                f"{num}; ask for smaller splits or give more items."
            )
    splits = {split: tuple(map(_closed, groups[split])) for split in SPLITS}
    return Task(
        name=name,
        **splits,
        scorer=scorer,
        max_new_tokens=MAX_NEW_TOKENS,
        stop=("\n",),
        fingerprint=fingerprint(splits),
        source=f"{ORIGINS[name]}, local files, SHA-256 of their rows {source}",
        environment=partial(SearchEnvironment, scorer=scorer) if searches else None,
    )


def _closed(item: Item) -> Item:
    question = closed_question(item.question, _shown(item))
    return replace(item, question=question)


def _shown(item: Item) -> tuple[Paragraph, ...]:
    return retrieve(item.question, item.meta["paragraphs"])


def _multi_hop(
    held: Sequence[Item], other: Sequence[Item], sizes: SplitSizes
) -> Groups:
    """Test and validation from `held`, pool and train from `other` and what is left.

    No other split asks a question of the test's, in its words or nearly, or shows a
    paragraph that the test shows: the leak guard then finds nothing in the closed
    questions either, which it reads much more slowly.
    """
    texts = {i.uid: {p["text"] for p in _shown(i)} for i in (*held, *other)}
    test, left = take_clean(_clustered(held, texts), sizes.test, ())
    told = set().union(*(texts[item.uid] for item in test))
    left = [item for item in left if not texts[item.uid] & told]
    other = [item for item in other if not texts[item.uid] & told]
    groups = {"test": test}
    groups["validation"], left = take_clean(left, sizes.validation, test)
    groups["pool"], left = take_clean([*other, *left], sizes.pool, test)
    groups["train"], _ = take_clean(left, sizes.train, test)
    return groups


def _clustered(items: Sequence[Item], texts: Mapping[str, set[str]]) -> list[Item]:
    """Items that share a text, through others too, behind the first one of them."""
    clusters: dict[str, list[Item]] = {}
    for item in items:
        met = {id(c): c for t in texts[item.uid] if (c := clusters.get(t)) is not None}
        merged = [*chain(*met.values()), item]
        for member in merged:
            clusters.update(dict.fromkeys(texts[member.uid], merged))
    ordered: dict[str, Item] = {}
    for item in items:
        cluster = clusters[min(texts[item.uid])]
        ordered.update({member.uid: member for member in cluster})
    return list(ordered.values())


def _by_article(items: Sequence[Item], seed: int) -> Groups:
    # A paragraph that two articles share stays with the first.
    first: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    articles: dict[str, list[Item]] = {}
    for item in items:
        (paragraph,) = item.meta["paragraphs"]
        title = first.setdefault(paragraph["text"], paragraph["title"])
        key = (normal_question(item.question), paragraph["text"])
        if key not in seen:
            seen.add(key)
            articles.setdefault(title, []).append(item)
    if len(articles) < len(SPLITS):
        raise TaskError(
            f"task 'squad2': expected at least {len(SPLITS)} articles, one a split, "
            f"got {len(articles)}; give more of the file."
        )

    def rank(title: str) -> bytes:
        return hashlib.sha256(f"{seed}\n{title}".encode()).digest()

    groups: Groups = {split: [] for split in SPLITS}
    for position, title in enumerate(sorted(articles, key=rank)):
        groups[_ARTICLES[position % len(_ARTICLES)]] += articles[title]
    return groups


def _spread(items: Sequence[Item]) -> list[Item]:
    """One item of each paragraph, then a second one of each, and so on."""
    count: Counter[str] = Counter()
    turns = []
    for item in items:
        text = item.meta["paragraphs"][0]["text"]
        turns.append(count[text])
        count[text] += 1
    return [items[at] for at in sorted(range(len(items)), key=turns.__getitem__)]


def _items(name: str, part: str, rows: Rows) -> list[Item]:
    """Items whose question is the bare one; an item without answers is impossible."""
    items = []
    for row in rows[part]:
        answers = [answer.strip() for answer in json.loads(row["answers"])]
        question = row["question"].strip()
        meta = {
            "answers": answers,
            "paragraphs": json.loads(row["paragraphs"]),
            "question": question,
            "impossible": not answers,
        }
        gold = answers[0] if answers else UNANSWERABLE
        items.append(Item(f"{name}/{part}/{row['id']}", question, gold, meta))
    return items
