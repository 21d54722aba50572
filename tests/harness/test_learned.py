"""A learned harness is data: it comes back from JSON, and nothing else does."""

import copy
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_space import TEMPLATES, equal_lengths

from metaharness.errors import HarnessError
from metaharness.harness.learned import Learned, learned_from_json, load_learned
from metaharness.harness.slots import Choice, Exemplars, Harness, Templates

POOL = equal_lengths(4)
ALLOWED = ((True, True, True, False), (False, True, True, True))
CHANCE = st.floats(0, 1, allow_subnormal=False)


def make(allowed=ALLOWED):
    return Learned(
        Harness(Exemplars(POOL, 2, allowed), Templates(TEMPLATES)),
        {"sum": Choice((2, 0), 1), "swap": Choice((1, 3), 2)},
        {
            "exemplars": {"sum": (0.9, 0.1, 1.0, 0.0), "swap": (0.0, 0.7, 0.6, 0.7)},
            "template": {"sum": (0.1, 0.8, 0.1), "swap": (0.0, 0.25, 0.75)},
        },
        "tiny",
        "ab" * 32,
    )


@st.composite
def learned(draw):
    exemplars = None
    if draw(st.booleans()):
        exemplars = Exemplars(POOL, 2, draw(st.sampled_from([(), ALLOWED])))
    pair = st.permutations(range(4)).map(lambda order: tuple(order[:2]))
    choices = {
        task: Choice(draw(pair) if exemplars else (), draw(st.integers(0, 2)))
        for task in ("sum", "swap")
    }
    row = st.tuples(*[CHANCE] * 4)
    probabilities = {"exemplars": {task: draw(row) for task in choices}}
    harness = Harness(exemplars, Templates(TEMPLATES))
    return Learned(harness, choices, probabilities, "tiny", "ab" * 32)


@given(learned())
def test_a_learned_harness_comes_back_from_its_json(one):
    assert learned_from_json(json.loads(json.dumps(one.as_json()))) == one


def test_it_is_found_in_a_run_directory_and_by_its_path(tmp_path):
    file = tmp_path / "harness.json"
    file.write_text(json.dumps(make().as_json()))
    assert load_learned(tmp_path) == load_learned(file) == make()


def test_the_json_names_what_was_chosen():
    chosen = make().as_json()["chosen"]
    assert chosen == {
        "sum": {"template": "result", "exemplars": ["e2", "e0"]},
        "swap": {"template": "plain", "exemplars": ["e1", "e3"]},
    }


def test_a_task_that_was_not_learned_is_refused():
    assert make().choice("swap") == Choice((1, 3), 2)
    with pytest.raises(HarnessError, match="expected a task among sum, swap, got 'su'"):
        make().choice("su")


def test_the_parts_of_a_task_are_what_its_prompt_is_made_of():
    template, exemplars = make().parts("sum")
    assert template == TEMPLATES[1] and exemplars == (POOL[2], POOL[0])
    with pytest.raises(HarnessError, match="one of sum, swap, got none; say which"):
        make().parts()
    one = dataclasses.replace(make(), choices={"swap": Choice((1, 3), 2)})
    assert one.parts() == one.parts("swap") == (TEMPLATES[2], (POOL[1], POOL[3]))
    with pytest.raises(HarnessError, match="got 'sum'"):
        one.parts("sum")


def without(key):
    return lambda data: data.pop(key)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(format=0), "of format 1, got 0"),
        (without("slots"), "KeyError.*slots"),
        (without("chosen"), "KeyError.*chosen"),
        (without("probabilities"), "KeyError.*probabilities"),
        (without("theta_digest"), "KeyError.*theta_digest"),
        (lambda data: data["chosen"]["sum"].update(template="gone"), "gone"),
        (lambda data: data["chosen"]["sum"].update(exemplars=["gone"]), "gone"),
        (lambda data: data["slots"]["exemplars"].update(k=9), "k between"),
        (lambda data: data["slots"]["exemplars"]["pool"].pop(), "allowed flags"),
        (lambda data: data["slots"]["template"]["pool"][0].update(x=1), "TypeError"),
        (lambda data: data.update(chosen=[]), "AttributeError"),
    ],
)
def test_json_of_another_form_is_refused_by_its_file(change, said):
    data = copy.deepcopy(make().as_json())
    change(data)
    with pytest.raises(HarnessError, match=f"(?s)^own.json: .*{said}"):
        learned_from_json(data, source="own.json")


@pytest.mark.parametrize("data", [[], "text", None, {}])
def test_json_that_is_no_harness_is_refused(data):
    with pytest.raises(HarnessError, match="expected a learned harness of format 1"):
        learned_from_json(data)


def test_a_missing_file_and_no_json_are_refused(tmp_path):
    with pytest.raises(HarnessError, match="no such file"):
        load_learned(tmp_path)
    (tmp_path / "harness.json").write_text("{")
    with pytest.raises(HarnessError, match="expected JSON"):
        load_learned(tmp_path)
