"""A space knows its laws and its limits, and refuses what could not be reported."""

import numpy as np
import pytest
from tiny_space import (
    CONFIG,
    TEMPLATES,
    equal_lengths,
    make_model,
    make_space,
    make_tasks,
)

from components.exemplars import Exemplar
from estimators import Family
from metaharness.errors import HarnessError, TaskError
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates
from metaharness.harness.space import build_space, shot_limit


def harness_of(pool, k=1):
    return Harness(Exemplars(tuple(pool), k), Templates(TEMPLATES))


def test_families_and_masks_follow_the_slots():
    space = make_space(2)
    assert space.families == {
        "template": Family("categorical", 3),
        "exemplars": Family("subset", 8, 2),
    }
    assert space.masks["template"].all() and space.masks["template"].shape == (2, 3)
    assert space.masks["exemplars"].sum(axis=1).tolist() == [4, 4]
    bare = make_space(0)
    assert set(bare.families) == set(bare.masks) == {"template"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_candidate_that_is_an_evaluated_item_is_refused(split):
    tasks = make_tasks()
    item = tasks[1].splits()[split][3]
    leak = Exemplar("leak", item.question, item.answer)
    with pytest.raises(TaskError, match=split):
        build_space(make_model(), harness_of([*equal_lengths(2), leak]), tasks)


def test_a_training_item_may_be_a_candidate():
    item = make_tasks()[0].train[0]
    shown = Exemplar("shown", item.question, item.answer)
    build_space(make_model(), harness_of([shown]), make_tasks())


def test_exemplars_and_prompts_beyond_the_context_are_refused():
    limit = shot_limit(make_model(), 3)
    assert limit == CONFIG.max_positions // 5
    long = [Exemplar(f"long{i}", "1" * 200, f"{i}") for i in range(3)]
    pool = harness_of([*equal_lengths(3), *long], 3)
    with pytest.raises(HarnessError, match=f"'long0': expected at most {limit}"):
        build_space(make_model(), pool, make_tasks())
    with pytest.raises(HarnessError, match="fewer than 512 tokens, got 6.. for 3"):
        build_space(make_model(), pool, make_tasks(), max_shot_tokens=300)


def test_items_are_packed_from_the_split_that_is_asked():
    space = make_space(1)
    packs = space.pack("test", width=64, limit=3)
    items = np.asarray(packs.items)
    assert sorted(items[0][items[0] >= 0].tolist()) == [0, 1, 2]
    first = space.renderer.question(TEMPLATES[0], space.tasks[1].test[0].question)
    assert packs.rows.tokens[1, 0, 0, : len(first)].tolist() == first


def test_pool_tokens_are_those_of_every_style():
    space = make_space(1)
    per_style = [
        len(space.renderer.head(t))
        + sum(len(space.renderer.shot(t, e)) for e in space.harness.candidates)
        for t in (TEMPLATES[0], TEMPLATES[2])
    ]
    assert space.pool_tokens == sum(per_style)


def test_a_prompt_is_shown_as_the_model_reads_it():
    space = make_space(2)
    item, choice = space.tasks[0].test[0], Choice((1, 3), 1)
    text = space.prompt_text(choice, item)
    tokens = space.prefix_tokens(choice)
    tokens += space.renderer.question(TEMPLATES[1], item.question)
    assert space.model.tokenizer.encode(text) == tokens
