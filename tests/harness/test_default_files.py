"""Each default harness file suits its tasks; its first candidates are a plain start."""

import configparser
import dataclasses
from fnmatch import fnmatch
from pathlib import Path

import pytest
import tiny_space

from metaharness.errors import HarnessError
from metaharness.harness import defaults
from metaharness.harness.defaults import FILES, default_harness_file, harness_path
from metaharness.harness.file import load_harness_file
from metaharness.harness.from_file import build_harness
from metaharness.harness.space import build_space
from metaharness.tasks.calculator import CALCULATE
from metaharness.tasks.registry import DATASETS
from metaharness.tasks.search import LOOKUP, SEARCH
from metaharness.tasks.task import SplitSizes
from metaharness.train.attribution import seed_choice
from metaharness.train.search_config import SearchConfig

ROOT = Path(__file__).parents[2]
# task -> k, and of the first candidates: template, output, attempts, protocol, calls
START = {
    "gsm8k": (4, "steps", "number", 1, "tags", 0),
    "svamp": (0, "steps", "number", 1, "tags", 0),
    "humaneval": (0, "whole_function", "whole", 1, "tags", 0),
    "mbpp": (3, "code_only", "whole", 1, "tags", 0),
    "hotpotqa": (2, "few_words", "whole", 1, "tags", 0),
    "musique": (2, "few_words", "whole", 1, "tags", 0),
    "squad2": (3, "or_unanswerable", "whole", 1, "tags", 0),
    "ifeval": (0, "exactly", "whole", 1, "tags", 0),
    "tau2_retail": (0, "bare", "whole", 1, "tags", 24),
    "tau2_mock": (0, "bare", "whole", 1, "tags", 24),
    "bfcl_simple": (0, "call_it", "whole", 1, "tags", 2),
    "bfcl_multiple": (0, "call_it", "whole", 1, "tags", 2),
}
TOOLS = {
    "gsm8k": {CALCULATE.name},
    "svamp": {CALCULATE.name},
    "hotpotqa": {SEARCH.name, LOOKUP.name},
    "musique": {SEARCH.name, LOOKUP.name},
}


@pytest.fixture(params=FILES)
def name(request):
    return request.param


def harness_of(name):
    task = tiny_space.make_task(name, "+", lambda a, b: a + b, num=20)
    task = dataclasses.replace(task, pool=task.pool + task.train)
    return task, build_harness(load_harness_file(default_harness_file(name)), [task])


def test_the_first_candidates_are_the_harness_to_start_with(name):
    task, harness = harness_of(name)
    space = build_space(tiny_space.make_model(), harness, [task])
    choice = seed_choice(space, 0)
    template, exemplars = harness.parts(choice)
    output, retry, tools, _ = harness.policies(choice)
    found = (len(exemplars), template.name, output.extract, retry.attempts)
    assert (*found, tools.protocol, tools.calls) == START[name]
    assert exemplars == harness.candidates[: len(exemplars)]


def test_a_training_needs_no_option_for_a_default_harness(name):
    """It has no more templates than the default samples allow."""
    _, harness = harness_of(name)
    search, num = SearchConfig(), len(harness.template.pool)
    assert num <= search.relaxed_samples and 2 * num <= search.samples
    assert len(harness.candidates) <= SplitSizes().pool


def test_slots_hold_what_the_task_can_use(name):
    _, harness = harness_of(name)
    protocols = {policy.protocol for policy in harness.tools}
    named = {tool for policy in harness.tools for tool in policy.tools or ()}
    if name.startswith(("tau2", "bfcl")):
        assert protocols == {"tags", "fenced", "lines"} and not named
        assert not harness.candidates
    elif harness.tools:
        # a call must end before the line does, where the task ends answers there
        assert protocols == {"tags", "lines"}
        assert named <= TOOLS[name]  # one that is not there would be left out unsaid


def test_every_file_is_some_tasks_and_is_in_the_wheel():
    folder = Path(defaults.__file__).parent / "defaults"
    held = {path.name for path in folder.iterdir()}
    assert held == set(FILES.values())
    assert set(FILES) <= set(DATASETS)
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    patterns = parser["options.package_data"]["*"].split(", ")
    for file in held:
        assert any(fnmatch(f"defaults/{file}", one) for one in patterns), file


def test_tasks_of_one_file_share_it_and_others_are_refused():
    own = Path("harness.toml")
    assert harness_path(own, ["gsm8k", "mbpp"]) == own
    default = Path("default")
    assert harness_path(default, ["hotpotqa", "musique"]).name == "multi_hop.toml"
    with pytest.raises(HarnessError, match="gsm8k gsm8k.toml, mbpp mbpp.toml; take"):
        harness_path(default, ["gsm8k", "mbpp"])
    with pytest.raises(HarnessError, match=r"\(gsm8k, svamp, .*got 'gsm9k'; give"):
        harness_path(default, ["gsm9k"])
