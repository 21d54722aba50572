"""HotpotQA, MuSiQue and SQuAD 2.0: what is shown, searched, scored and kept apart."""

import gzip
import json
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.tools import ToolReply
from metaharness.errors import TaskError
from metaharness.tasks import SplitSizes, find_leaks, load_task, task_names
from metaharness.tasks.retrieval_qa import ABSTENTIONS, UNANSWERABLE, squad2_scorer
from metaharness.tasks.scorers import normal_match, token_f1
from metaharness.tasks.search import (
    LOOKUP,
    SEARCH,
    SearchEnvironment,
    closed_question,
    retrieve,
)
from metaharness.tasks.task import Item

NAMES = ("hotpotqa", "musique", "squad2")


def word(draw):
    return "".join(draw.choice("bdfgklmnprst") + draw.choice("aeiou") for _ in range(4))


def prose(draw, num=20):
    return " ".join(word(draw) for _ in range(num)).capitalize() + "."


def hop(number):
    """A question of two hops, ten paragraphs, the supporting ones last."""
    draw = random.Random(number)
    person, town, river = (word(draw).capitalize() for _ in range(3))
    noise = [
        {"title": word(draw), "text": prose(draw), "supporting": False}
        for _ in range(8)
    ]
    texts = {
        person: f"{person} was born in the town of {town}. {prose(draw)}",
        town: f"{town} is a town where the river {river} passes. {prose(draw)}",
    }
    gold = [{"title": t, "text": x, "supporting": True} for t, x in texts.items()]
    return {
        "id": f"h{number}",
        "question": f"Which river passes the town where {person} was born?",
        "answers": [river, f"the river {river}"],
        "contexts": noise + gold,
    }


def about(article, paragraph, question):
    """A question on a paragraph; every second one has no answer there."""
    draw = random.Random(100 * article + paragraph)
    name, color = word(draw).capitalize(), word(draw)
    impossible = question % 2 == 1
    asked = ["What colour is", "Who painted", "Which is the colour of", "Who sold"]
    return {
        "id": f"s{article}-{paragraph}-{question}",
        "title": f"Article_{article}",
        "question": f"{asked[question]} {name}?",
        "answers": [] if impossible else [color],
        "impossible": impossible,
        "context": f"The colour of {name} is {color}. {prose(draw, 30)}",
    }


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


ARTICLES = [about(a, p, q) for a in range(8) for p in range(3) for q in range(4)]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "hotpotqa/dev500.jsonl", [hop(n) for n in range(20)])
    write(folder / "hotpotqa/train100.jsonl.gz", [hop(n) for n in range(100, 112)])
    write(folder / "musique/train100.jsonl.gz", [hop(n) for n in range(200, 220)])
    write(folder / "squad2/dev.jsonl", ARTICLES)
    return folder


@pytest.fixture(scope="module")
def tasks(local, cache):
    return {name: load_task(name, data_dir=local) for name in NAMES}


def lengths(task):
    return [len(items) for items in task.splits().values()]


def bare(items):
    return [replace(item, question=item.meta["question"]) for item in items]


def blocks(items):
    """The paragraphs that the questions show."""
    return {text for item in items for text in item.question.split("\n")[2:-2:2]}


def texts(items):
    return {p["text"] for item in items for p in item.meta["paragraphs"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_task_keeps_what_every_task_keeps(tasks, local, name):
    task = tasks[name]
    items = [item for split in task.splits().values() for item in split]
    assert len({item.uid for item in items}) == len(items)
    assert len({item.question for item in items}) == len(items)
    rest = (*task.pool, *task.train, *task.validation)
    assert not find_leaks(rest, task.test)
    for item in items:
        assert json.loads(json.dumps(item.meta)) == item.meta
        assert task.scorer(item.answer, item) == 1.0
        assert task.scorer("Nothing of the kind", item) == 0.0
        assert not any(stop in item.answer for stop in task.stop)
    assert name in {info.name for info in task_names()}
    again = load_task(name, data_dir=local)
    assert again.fingerprint == task.fingerprint
    assert load_task(name, data_dir=local, seed=1).fingerprint != task.fingerprint


def test_hotpotqa_is_tested_on_development_questions(tasks):
    task = tasks["hotpotqa"]
    # three and one fifths of 20; two thirds of 12; what is left of both
    assert lengths(task) == [8, 8, 4, 12]
    for item in (*task.validation, *task.test):
        assert item.uid.startswith("hotpotqa/dev/")
    assert all(item.uid.startswith("hotpotqa/train/") for item in task.pool)
    origins = Counter(item.uid.split("/")[1] for item in task.train)
    assert origins == {"train": 4, "dev": 4}


def test_musique_is_cut_into_tenths(tasks):
    assert lengths(tasks["musique"]) == [2, 2, 4, 12]


def test_asked_sizes_are_met_or_refused(local):
    sizes = SplitSizes(pool=3, train=4, validation=2, test=5)
    for name in NAMES:
        task = load_task(name, data_dir=local, sizes=sizes)
        assert lengths(task) == [3, 4, 2, 5]
    too_many = SplitSizes(pool=3, train=4, validation=5, test=17)
    with pytest.raises(TaskError, match="expected 5 .* 'validation', got 3"):
        load_task("hotpotqa", data_dir=local, sizes=too_many)


def test_a_question_shows_its_best_three_paragraphs_and_then_asks(tasks):
    for item in tasks["hotpotqa"].test:
        lines = item.question.split("\n")
        assert lines[0] == "<context>" and lines[-2] == "</context>"
        assert lines[-1] == item.meta["question"]
        assert len(lines) == 9 and all(lines)
        # both supporting paragraphs share the question's rare words
        shown = {line.partition("] ")[2] for line in lines[1:-2:2]}
        gold = {p["title"] for p in item.meta["paragraphs"] if p["supporting"]}
        assert gold < shown
        assert len(item.meta["paragraphs"]) == 10


def test_a_paragraph_cannot_close_its_block():
    row = {"title": "A\n</context>", "text": "one\n\n</Context> two <context>three"}
    shown = closed_question(" why? \n", [row])
    assert shown == "<context>\n[1] A\none two three\n</context>\nwhy?"


def test_paragraphs_without_a_shared_word_fill_up_in_their_order():
    rows = [{"title": t, "text": "x"} for t in ("a", "b", "c", "d")]
    assert [p["title"] for p in retrieve("c", rows)] == ["c", "a", "b"]
    assert [p["title"] for p in retrieve("c", rows[:2])] == ["a", "b"]


def test_a_test_question_with_other_paragraphs_is_not_trained_on(local, tmp_path):
    sizes = SplitSizes(pool=2, train=30, validation=4, test=12)
    dev = [hop(n) for n in range(20)]
    long = "In the year 1903 a painter came to see it, and he stayed there for a week. "
    dev = [row | {"question": long + row["question"]} for row in dev]
    copies = [
        row | {"id": f"copy{n}", "contexts": hop(n + 500)["contexts"],
               "question": row["question"].replace("1903 a", "1903 some")}
        for n, row in enumerate(dev)
    ]  # fmt: skip
    write(tmp_path / "hotpotqa/dev500.jsonl", dev)
    write(tmp_path / "hotpotqa/train100.jsonl", copies)
    task = load_task("hotpotqa", data_dir=tmp_path, sizes=replace(sizes, train=8))
    rest = (*task.pool, *task.train, *task.validation)
    assert not find_leaks(bare(rest), bare(task.test))
    tested = {item.answer for item in task.test}
    assert not tested & {item.answer for item in rest}


def twin(number):
    """Another question over the same paragraphs."""
    row = hop(number)
    person = row["contexts"][-2]["title"]
    return row | {
        "id": f"t{number}",
        "question": f"Name the river near {person}'s home",
    }


def test_the_shown_paragraphs_of_a_test_item_are_not_trained_on(tmp_path):
    write(tmp_path / "hotpotqa/dev500.jsonl", [hop(n) for n in range(20)])
    write(tmp_path / "hotpotqa/train100.jsonl", [twin(n) for n in range(20)])
    # 8 of the 20 twins are not the test's, 4 questions are left
    sizes = SplitSizes(pool=8, train=4, validation=4, test=12)
    task = load_task("hotpotqa", data_dir=tmp_path, sizes=sizes)
    rest = (*task.pool, *task.train, *task.validation)
    assert not blocks(rest) & blocks(task.test)
    with pytest.raises(TaskError, match="expected 5 distinct items for 'train', got 4"):
        load_task("hotpotqa", data_dir=tmp_path, sizes=replace(sizes, train=5))


def test_questions_that_show_the_same_paragraph_stay_together(tmp_path):
    rows = [row for n in range(10) for row in (hop(n), twin(n))]
    write(tmp_path / "musique/train100.jsonl", rows)
    for seed in range(3):
        task = load_task("musique", data_dir=tmp_path, seed=seed)
        assert lengths(task) == [2, 2, 4, 12]
        rest = (*task.pool, *task.train, *task.validation)
        assert not blocks(rest) & blocks(task.test)
    # a pair that does not fit into the test split is not split up
    sizes = SplitSizes(pool=2, train=2, validation=4, test=11)
    task = load_task("musique", data_dir=tmp_path, sizes=sizes)
    rest = (*task.pool, *task.train, *task.validation)
    assert not blocks(rest) & blocks(task.test)


def test_no_paragraph_of_squad2_is_in_two_splits(tasks):
    splits = tasks["squad2"].splits()
    articles = {
        split: {i.meta["paragraphs"][0]["title"] for i in items}
        for split, items in splits.items()
    }
    assert {s: len(found) for s, found in articles.items()} == {
        "pool": 1, "train": 2, "validation": 1, "test": 4
    }  # fmt: skip
    assert len(set().union(*articles.values())) == 8
    assert sum(len(texts(items)) for items in splits.values()) == 24


def test_a_paragraph_under_two_titles_stays_in_one_split(tmp_path):
    shared = "The same paragraph stands in every article of this file."
    rows = [
        row | {"context": shared} if row["id"].split("-")[1:] == ["0", "0"] else row
        for row in ARTICLES
    ]
    write(tmp_path / "squad2/dev.jsonl", rows)
    splits = load_task("squad2", data_dir=tmp_path).splits()
    assert sum(shared in texts(items) for items in splits.values()) == 1


def test_squad2_asks_once_about_each_paragraph_before_it_asks_again(local):
    task = load_task("squad2", data_dir=local, sizes=SplitSizes(3, 6, 3, 12))
    for items in task.splits().values():
        assert len(texts(items)) == len(items)
    # so the leak guard has a verdict: a test item with one word changed is found
    item = task.test[0]
    copy = replace(item, uid="copy", question=item.question.replace(" is ", " was ", 1))
    assert [leak.evaluated_uid for leak in find_leaks([copy], task.test)] == [item.uid]
    task = load_task("squad2", data_dir=local, sizes=SplitSizes(3, 6, 3, 20))
    count = Counter(item.meta["paragraphs"][0]["text"] for item in task.test)
    assert sorted(count.values()) == [1] * 4 + [2] * 8


def test_squad2_items_are_one_paragraph_and_maybe_no_answer(tasks):
    for items in tasks["squad2"].splits().values():
        kinds = {item.meta["impossible"] for item in items}
        assert kinds == {True, False}
        for item in items:
            (paragraph,) = item.meta["paragraphs"]
            assert item.question == (
                f"<context>\n[1] {paragraph['title']}\n{paragraph['text']}\n"
                f"</context>\n{item.meta['question']}"
            )
            assert "_" not in paragraph["title"]
            assert (item.answer == UNANSWERABLE) == item.meta["impossible"]
            assert bool(item.meta["answers"]) != item.meta["impossible"]
    assert tasks["squad2"].environment is None


def test_squad2_needs_an_article_a_split(tmp_path):
    rows = [row for row in ARTICLES if row["title"] < "Article_3"]
    write(tmp_path / "dev.jsonl", rows)
    with pytest.raises(TaskError, match="at least 4 articles, one a split, got 3"):
        load_task("squad2", data_dir=tmp_path)


ANSWERABLE = Item("1", "q", "red paint", {"answers": ["red"], "impossible": False})
IMPOSSIBLE = Item("2", "q", UNANSWERABLE, {"answers": [], "impossible": True})


@pytest.mark.parametrize(
    "text,answerable,impossible",
    [
        ("red", 1.0, 0.0),
        ("the red paint", 1.0, 0.0),
        ("red wall", 2 / 3, 0.0),  # against "red paint" 2 / 4
        ("blue", 0.0, 0.0),
        ("", 0.0, 1.0),
        (" \n.", 0.0, 1.0),
        ("Unanswerable.", 0.0, 1.0),
        ("I don't know.", 0.0, 1.0),
        ("The question is unanswerable", 0.0, 1.0),
        ("unanswerable, but red", 2 / 4, 0.0),  # against "red paint" 2 / 5
        ("It is unknown to me", 0.0, 0.0),
    ],
)
def test_squad2_scores_as_its_authors_do(text, answerable, impossible):
    score = squad2_scorer()
    assert score(text, ANSWERABLE) == pytest.approx(answerable)
    assert score(text, IMPOSSIBLE) == impossible


def test_an_abstention_earns_its_price_and_nothing_else_does():
    score, free = squad2_scorer(abstain_reward=0.3), squad2_scorer()
    for text in (*ABSTENTIONS, ""):
        assert score(text, ANSWERABLE) == 0.3 and free(text, ANSWERABLE) == 0.0
        assert score(text, IMPOSSIBLE) == 1.0
    for text in ("red", "red wall", "blue"):
        for item in (ANSWERABLE, IMPOSSIBLE):
            assert score(text, item) == free(text, item)
    said = Item("3", "q", "unknown", {"answers": ["unknown"], "impossible": False})
    assert score("Unknown", said) == 1.0 and score("no answer", said) == 0.3


@pytest.mark.parametrize("price", [0.0, 0.3])
def test_answering_pays_just_above_the_stated_bar(price):
    score = squad2_scorer(abstain_reward=price)
    share = 0.2
    items = [IMPOSSIBLE] * 2 + [ANSWERABLE] * 8
    silent = sum(score("no answer", item) for item in items)
    for answers, pays in (
        (["red"] * 8, True),
        (["red wall"] * 8, True),
        (["red"] * 3 + ["x"] * 5, price == 0.0),
        (["x"] * 8, False),
    ):
        mean = sum(score(text, ANSWERABLE) for text in answers) / 8
        assert (mean > price + share / (1 - share)) == pays
        said = zip(["x"] * 2 + answers, items, strict=True)
        assert (sum(score(text, item) for text, item in said) > silent) == pays


@pytest.mark.parametrize("price", [-0.1, 1.0, float("nan")])
def test_a_price_out_of_range_is_refused(price):
    with pytest.raises(ValueError, match=r"abstain_reward in \[0, 1\), got"):
        squad2_scorer(abstain_reward=price)


@given(text=st.text(), price=st.floats(0.0, 0.9))
def test_squad2_scores_are_total_and_in_range(text, price):
    for item in (ANSWERABLE, IMPOSSIBLE):
        assert 0.0 <= squad2_scorer(abstain_reward=price)(text, item) <= 1.0


def world(number=7, scorer=token_f1):
    row = hop(number)
    meta = {"answers": row["answers"], "paragraphs": row["contexts"]}
    item = Item("1", row["question"], row["answers"][0], meta)
    return SearchEnvironment(item, scorer=scorer), row


def test_two_searches_lead_to_the_answer():
    environment, row = world()
    person, town = (p["title"] for p in row["contexts"][-2:])
    first = environment.call("search", {"query": f"{person} born", "num": 1})
    assert first == ToolReply(f"[1] {person}\n{row['contexts'][-2]['text']}")
    second = environment.call("search", {"query": f"river {town}", "num": 1})
    assert second.text.startswith(f"[1] {town}\n") and row["answers"][0] in second.text
    assert "supporting" not in first.text + second.text


def test_search_gives_as_many_as_asked_and_three_unasked():
    environment, row = world()
    every = " ".join(p["title"] for p in row["contexts"])
    for arguments, num in (({}, 3), ({"num": 5}, 5), ({"num": 2.0}, 2)):
        reply = environment.call("search", {"query": every} | arguments)
        assert not reply.error and len(reply.text.split("\n")) == 2 * num
        assert reply.text.split("\n")[-2].startswith(f"[{num}] ")


def test_a_search_without_a_hit_says_so():
    environment, _ = world()
    for query in ("", "xyz"):
        reply = environment.call("search", {"query": query})
        assert reply.text.startswith("no paragraph has a word") and not reply.error


def test_lookup_reads_all_paragraphs_of_a_title():
    texts = {"Ada": "1", "Bo": "2", "ADA": "3", "!": "4"}
    meta = {"paragraphs": [{"title": t, "text": x} for t, x in texts.items()]}
    environment = SearchEnvironment(Item("1", "q", "a", meta), scorer=token_f1)
    reply = environment.call("lookup", {"title": " the ada."})
    assert reply == ToolReply("[1] Ada\n1\n[2] ADA\n3")
    assert environment.call("lookup", {"title": "!"}).text == "[1] !\n4"
    for title in ("Ad", "", "?"):
        assert environment.call("lookup", {"title": title}).error


@pytest.mark.parametrize(
    "name,arguments,said",
    [
        ("find", {}, "expected the tool search or lookup, got 'find'"),
        ("search", {}, "search: expected query .text. and maybe num"),
        ("search", {"query": 3}, "got {'query': 3}"),
        ("search", {"query": "a", "num": 0}, "whole number from 1 to 5"),
        ("search", {"query": "a", "num": 6}, "'num': 6"),
        ("search", {"query": "a", "num": True}, "search: expected"),
        ("search", {"query": "a", "num": 1.5}, "search: expected"),
        ("search", {"query": "a", "num": 10**5000}, "search: expected"),
        ("search", {"query": "a", "n": 2}, "search: expected"),
        ("search", "a", "got 'a'; call it again"),
        ("search", None, "got None"),
        ("lookup", {"query": "a"}, "lookup: expected title .text., got"),
        ("lookup", {"title": "Nobody"}, "expected a title that search shows, got 'Nob"),
    ],
)  # fmt: skip
def test_a_wrong_call_gets_an_error_reply(name, arguments, said):
    reply = world()[0].call(name, arguments)
    assert reply.error and reply.text.startswith("error: ")
    assert re.search(said, reply.text) and len(reply.text) < 200


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
KEYS = st.sampled_from(["query", "num", "title"]) | st.text() | st.integers()


@given(
    name=st.sampled_from(["search", "lookup"]) | VALUES,
    arguments=st.dictionaries(KEYS, VALUES, max_size=3) | VALUES,
    answer=st.text(),
)
def test_a_call_never_raises_and_changes_nothing(name, arguments, answer):
    environment, row = world()
    reply = environment.call(name, arguments)
    assert isinstance(reply, ToolReply) and reply.text
    assert environment.call(name, arguments) == reply
    assert row == hop(7)
    assert 0.0 <= environment.reward(answer) <= 1.0


def test_the_environment_grades_as_its_task_does(tasks):
    for name, scorer in (("hotpotqa", token_f1), ("musique", normal_match)):
        task = tasks[name]
        item = task.test[0]
        environment = task.environment(item)
        assert environment.tools == (SEARCH, LOOKUP)
        assert not environment.call("search", {"query": item.meta["question"]}).error
        for text in (*item.meta["answers"], f"{item.answer} or so", ""):
            assert environment.reward(text) == task.scorer(text, item)
            assert environment.reward(text) == scorer(text, item)
    assert 0.0 < tasks["hotpotqa"].scorer(f"{item.answer} or so", item) < 1.0
    assert tasks["musique"].scorer(f"{item.answer} or so", item) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_missing_data_is_named_with_where_it_comes_from(name, tmp_path):
    with pytest.raises(TaskError, match="no --data-dir; .*https:.* --data-dir DIR"):
        load_task(name)
    with pytest.raises(TaskError) as caught:
        load_task(name, data_dir=tmp_path)
    said = str(caught.value)
    assert "\n" not in said and f".jsonl in {tmp_path}; take it from https://" in said
    assert f"into {tmp_path / name}/" in said
    assert said.endswith(f"and pass --data-dir {tmp_path}") and "answers" in said


@pytest.mark.parametrize(
    "name,change,said",
    [
        ("musique", {"id": "h201"}, "an id of its own, got 'h201' again"),
        ("musique", {"question": ""}, "expected text in field 'question'"),
        ("musique", {"answers": []}, r"a list of texts in 'answers', got \[\]"),
        ("musique", {"answers": "x"}, "a list of texts in 'answers', got x"),
        ("musique", {"contexts": []}, "a list of paragraphs in 'contexts', got"),
        ("musique", {"contexts": [{"title": "t"}]}, "title and text in each paragraph"),
        ("squad2", {"impossible": "no"}, "true or false in 'impossible', got no"),
        ("squad2", {"impossible": True}, "expected no answers, got"),
        ("squad2", {"answers": []}, "a list of texts in 'answers'"),
        ("squad2", {"context": None}, "expected text in field 'context'"),
    ],
)
def test_a_broken_row_is_named(name, change, said, tmp_path):
    stem = {"musique": "train100", "squad2": "dev"}[name]
    rows = ARTICLES if name == "squad2" else [hop(201), hop(202), hop(203)]
    rows = [*rows[:2], rows[2] | change]
    write(tmp_path / f"{stem}.jsonl", rows)
    with pytest.raises(TaskError, match=f"{stem}.jsonl:3: .*{said}"):
        load_task(name, data_dir=tmp_path)


def test_real_hotpotqa(shared):
    task = load_task("hotpotqa", data_dir=shared)
    assert lengths(task) == [64, 136, 100, 300]
    items = [item for items in task.splits().values() for item in items]
    found = 0
    for item in items:
        gold = {p["title"] for p in item.meta["paragraphs"] if p["supporting"]}
        shown = retrieve(item.meta["question"], item.meta["paragraphs"])
        found += gold <= {p["title"] for p in shown}
    assert found == 290
    check_real(task)


def test_real_musique(shared):
    task = load_task("musique", data_dir=shared)
    assert lengths(task) == [10, 10, 20, 60]
    assert all(len(item.meta["paragraphs"]) == 20 for item in task.test)
    check_real(task)


def test_real_squad2(shared):
    task = load_task("squad2", data_dir=shared)
    assert lengths(task) == [64, 256, 64, 256]
    splits = task.splits().values()
    paragraphs = [texts(items) for items in splits]
    assert sum(map(len, paragraphs)) == len(set().union(*paragraphs))
    assert len(texts(task.test)) == 256
    for items in splits:
        share = sum(item.meta["impossible"] for item in items) / len(items)
        assert 0.35 < share < 0.65
    item = task.test[0]
    copy = replace(item, uid="copy", question=item.question.replace(" the ", " a ", 1))
    found = find_leaks([copy], task.test[:100])
    assert [leak.evaluated_uid for leak in found] == [item.uid]
    check_real(task)


def check_real(task):
    # the leak guard takes seconds for as much text: it reads part of it here
    rest = (*task.pool, *task.train, *task.validation)
    assert not find_leaks(rest[::12], task.test[::12])
    if task.name != "squad2":
        assert not find_leaks(bare(rest), bare(task.test))
    assert not blocks(rest) & blocks(task.test)
    assert all(task.scorer(item.answer, item) == 1.0 for item in (*rest, *task.test))
    assert task.fingerprint == STORED_FINGERPRINTS[task.name]


# load_task(name, data_dir=...) of the copies that their SOURCE.md names
STORED_FINGERPRINTS = {
    "hotpotqa": "ff5b24a3bb4a0a6fcbcf65c1ae277eddaf91bfdd24d4f6b1de59a4736251d0d3",
    "musique": "ebfbe5ddfd7246041a97f91c7bf6cfd38c272f9ced2268c10636f351bb1f3d16",
    "squad2": "33a3ea9268b2a2816858f4fc2289bde8b6d18c95155722911bc8a968dc19e6a2",
}
