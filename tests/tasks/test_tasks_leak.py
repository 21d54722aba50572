"""The leak guard finds copies and near copies, and nothing else."""

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaharness.errors import TaskError
from metaharness.tasks.leak import check_leaks, find_leaks
from metaharness.tasks.normal import normal_question
from metaharness.tasks.task import Item

NOUNS = (
    "river stone garden market window paper silver engine winter bottle ladder "
    "kitchen forest bridge ticket candle pocket summer doctor farmer singer island"
).split()
WORDS = [a + b for a in NOUNS for b in NOUNS]


def story(seed: int, length: int = 30) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(length)) + f" {rng.random()}?"


def items(questions, name="test"):
    return [Item(f"{name}:{i}", q, "a") for i, q in enumerate(questions)]


STORIES = items(story(i) for i in range(40))
FRAME = "Find the greatest common divisor of {} and {}. Give only the number."
FRAMED = items(FRAME.format(i * 37 + 11, i * 91 + 5) for i in range(40))
NUMBERS = items(f"{a}, {a + d}, {a + 2 * d}, ?" for a in range(8) for d in (1, 2, 3))


def pool(question: str) -> list[Item]:
    return [Item("pool:0", question, "other")]


def found(question: str, evaluated) -> list[tuple[str, str]]:
    leaks = find_leaks(pool(question), evaluated)
    return [(leak.pool_uid, leak.evaluated_uid) for leak in leaks]


@pytest.mark.parametrize(
    "change",
    [
        str,
        str.upper,
        lambda q: "  " + q.replace(" ", "\n"),
        lambda q: q.removesuffix("?"),
        lambda q: q.replace(" ", " not ", 1),
        lambda q: " ".join(q.split()[1:]),
        lambda q: q.replace(q.split()[4], "sentence", 1),
        lambda q: "Please solve. " + q,
    ],
)
@pytest.mark.parametrize("position", [0, 17, 39])
def test_a_copy_with_small_changes_is_found(change, position):
    question = change(STORIES[position].question)
    assert found(question, STORIES) == [("pool:0", f"test:{position}")]


def test_another_story_is_not_found():
    for seed in range(100, 200):
        assert not found(story(seed), STORIES)


def test_another_number_makes_another_problem_where_the_answer_changes_too():
    question = STORIES[3].question
    number = question.split()[-1]
    for changed, answer, leaks in (
        (question.replace(number, "41?"), "b", 0),
        (question.replace(number, "41?"), STORIES[3].answer, 1),
        (question.replace(question.split()[0], "sentence"), "b", 1),
    ):
        assert len(find_leaks([Item("mine", changed, answer)], STORIES)) == leaks


def test_a_copy_with_too_many_changes_is_not_found():
    words = STORIES[3].question.split()
    for i in range(0, 24, 6):
        words[i] = "sentence"
    assert not found(" ".join(words), STORIES)


def test_items_in_one_frame_are_told_apart_by_what_they_do_not_share():
    assert not found(FRAME.format(12, 18), FRAMED)
    assert found(FRAME.format(11, 5), FRAMED) == [("pool:0", "test:0")]
    # without the frame, and in a frame with another word
    for question in (
        "48 and 96",
        FRAME.format(48, 96).replace("Give", "Write"),
        FRAME.format(48, 96).replace("the greatest", "greatest"),
    ):
        assert found(question, FRAMED) == [("pool:0", "test:1")]
        for other in ("47", "8", "148"):
            assert not found(question.replace("48", other), FRAMED)


def test_short_number_questions_are_only_found_when_equal():
    assert found("5, 7, 9, ?", NUMBERS)
    assert found("5,  7,  9, ?", NUMBERS)
    # how all of them end does not count
    assert found("5, 7, 9", NUMBERS)
    for question in ("5, 7, 9, 11, ?", "-5, 7, 9, ?", "5, 7, 90, ?", "9, 7, 5, ?"):
        assert not found(question, NUMBERS)


def test_signs_of_an_expression_count():
    evaluated = items(["3 + 4", "3 - 4", "3 * 4", "-3 + 4"])
    assert found("3 / 4", evaluated) == []
    assert found("3 - 4", evaluated) == [("pool:0", "test:1")]
    assert normal_question("5! = ?") != normal_question("5 = ?")


def test_one_near_duplicate_inside_the_evaluated_split_changes_nothing():
    twin = replace(STORIES[0], uid="test:twin", question="Oh " + STORIES[0].question)
    evaluated = [*STORIES, twin]
    assert found(STORIES[5].question + " yes", evaluated) == [("pool:0", "test:5")]


def test_a_family_that_varies_one_word_counts_equal_questions_only():
    text = "The {} stood by the old river and nobody in the town knew why it was there"
    evaluated = items(text.format(word) for word in NOUNS[:-1])
    assert not found(text.format(NOUNS[-1]), evaluated)
    assert found(text.format(NOUNS[0]), evaluated) == [("pool:0", "test:0")]


def test_a_family_of_several_frames_counts_equal_questions_only():
    frames = [story(seed, 20) + " {} met {} there" for seed in range(4)]
    pairs = [(a, b) for a in NOUNS[:6] for b in NOUNS[6:12]]
    evaluated = items(
        frames[i % 4].format(a, b) for i, (a, b) in enumerate(pairs * 4, start=1)
    )
    assert not found(frames[0].format("alice", "bob"), evaluated)
    assert found(evaluated[9].question, evaluated) == [("pool:0", "test:9")]


def test_runs_of_a_grid_are_never_taken_for_shared_text():
    evaluated = items(f"0 0 0 {n} 0 0 0" for n in range(1, 40))
    assert not found("0 0 0 0 0 0 7", evaluated)
    assert found("0 0 0 7 0 0 0", evaluated) == [("pool:0", "test:6")]


def test_a_board_among_few_words_must_be_equal():
    def board(seed):
        cells = ["."] * 150
        for cell in random.Random(seed).sample(range(150), 4):
            cells[cell] = "x"
        return story(0, 12) + " " + " ".join(cells)

    evaluated = items([board(1), *(story(seed) for seed in range(1, 8))])
    assert not found(board(2), evaluated)
    assert found(board(1), evaluated) == [("pool:0", "test:0")]


def test_few_items_share_text_by_chance_and_keep_it():
    few = items(f"What is the usual colour of {word}?" for word in ("snow", "grass"))
    assert not found("What is the usual colour of mud?", few)
    assert not found("snow", few)


def test_one_edit_in_the_shortest_text_that_is_compared_is_found():
    evaluated = items(" ".join(WORDS[i * 11 : i * 11 + 10]) for i in range(30))
    words = evaluated[4].question.split()
    words[5] = "sentence"
    assert found(" ".join(words), evaluated) == [("pool:0", "test:4")]
    assert not found(" ".join(words[1:]), evaluated)


def test_nothing_to_compare_is_no_leak():
    assert find_leaks([], STORIES) == find_leaks(pool("a"), []) == ()


def test_the_error_names_both_items_and_the_remedy():
    bad = [Item("mine:3", STORIES[7].question, "a"), *pool(story(999))]
    check_leaks(bad[1:], STORIES)
    with pytest.raises(
        TaskError,
        match="pool item 'mine:3' equal to validation item 'test:7' .*remove it",
    ):
        check_leaks(bad, STORIES, split="validation")
    near = [Item("mine:4", "Oh " + STORIES[8].question, "a")]
    with pytest.raises(TaskError, match="'mine:4' nearly equal to test item 'test:8'"):
        check_leaks(near, STORIES)


@given(st.text(max_size=60), st.lists(st.text(max_size=60), max_size=12))
def test_every_item_leaks_into_a_split_that_holds_it(question, others):
    evaluated = items([*others, question])
    assert len(find_leaks(pool(question), evaluated)) == 1


@given(st.text())
def test_the_normal_form_is_stable(text):
    assert normal_question(normal_question(text)) == normal_question(text)


@given(st.integers(0, 39), st.integers(0, 29), st.sampled_from(["cut", "swap", "add"]))
def test_any_single_edit_of_a_long_question_is_found(position, at, edit):
    words = STORIES[position].question.split()
    words[at : at + (edit != "add")] = [] if edit == "cut" else ["sentence"]
    assert found(" ".join(words), STORIES) == [("pool:0", f"test:{position}")]


def test_the_guard_is_fast_enough_for_the_largest_test_split():
    evaluated = items(story(i, 60) for i in range(1319))
    exemplars = items((story(i, 60) for i in range(2000, 2064)), "pool")
    start = time.process_time()
    assert not find_leaks(exemplars, evaluated)
    assert time.process_time() - start < 8.0
