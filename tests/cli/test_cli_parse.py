"""Options and help: every mistake is one line, and every level explains itself."""

import re

import pytest

from metaharness.cli.entry import COMMANDS
from metaharness.cli.parse import option_names, parse
from metaharness.errors import InputError
from metaharness.train.config import TrainConfig


def refused(*words):
    with pytest.raises(InputError) as caught:
        parse(words, COMMANDS)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_train_takes_the_config_by_field_path():
    options = parse(
        ["train", "--task", "a", "b", "--search.relaxed-steps", "7", "--data-dir", "d"],
        COMMANDS,
    )
    assert options.task == ("a", "b") and options.search.relaxed_steps == 7
    assert str(options.data_dir) == "d" and isinstance(options, TrainConfig)


def test_bare_train_is_the_default_job():
    options = parse(["train"], COMMANDS)
    default = TrainConfig()
    assert options.task == default.task and options.search == default.search
    assert options.slots == default.slots and options.evaluation == default.evaluation


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["train", "--search.taux", "3"], "did you mean --search.tau?"),
        (["train", "--relaxed-steps=3"], "did you mean --search.relaxed-steps?"),
        (["train", "--sed", "3"], "did you mean --seed?"),
        (["train", "--k", "3"], "did you mean --slots.k?"),
        (["train", "--evaluation.no_generat"], "--evaluation.no-generate?"),
        (["show", "run", "--tsk", "a"], "did you mean --task?"),
        (["generate", "hi", "--tempreature", "1"], "did you mean --temperature?"),
        (["train", "--zzz"], "see metaharness train --help"),
        (["trian"], "did you mean train?"),
        (["show", "one", "two"], "got 'two'; remove it"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_closest(words, suggestion):
    said = refused(*words)
    assert suggestion in said and "expected" in said


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", "--seed", "x"], ("--seed", "'x'", "metaharness train --help")),
        (["train", "--model"], ("--model", "metaharness train --help")),
        (["show"], ("RUN", "metaharness show --help")),
        (["train", "--search.tau", "0.01"], ("search.tau", "0.1", "0.01")),
        (["train", "--slots.k", "11"], ("slots.k", "between 1 and 10", "11")),
        (["evaluate", "--split", "train"], ("'train'", "validation")),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(words, parts):
    said = refused(*words)
    for part in parts:
        assert part in said
    assert not re.search("[│╭╰─]|dummy", said)


def test_suggestions_are_real_options():
    for name in option_names(COMMANDS["train"]):
        # --sinks alone is a list of none
        if name not in ("--help", "--quiet", "--sinks") and ".no-" not in name:
            said = refused("train", name)  # known, but without its value
            assert "exists" not in said or name == "--task", said


@pytest.mark.parametrize("level", [(), *((name,) for name in COMMANDS)])
def test_help_on_every_level(cli, level):
    result = cli(*level, "--help")
    assert result.status == 0 and result.err == ""
    assert result.out.startswith(" ".join(("usage: metaharness", *level)))
    assert "None}" not in result.out
    described = COMMANDS[level[0]].__doc__ if level else "Learn the harness"
    assert described.split(". ")[0].split(",")[0][:40] in result.out


def test_help_of_train_explains_nested_fields(cli):
    out = " ".join(cli("train", "--help").out.split())
    assert "--search.relaxed-steps INT" in out and "--slots.k INT" in out
    assert "--evaluation.no-generate" in out


def test_no_command_shows_the_help(cli):
    assert cli() == cli("--help")


def test_version(cli):
    result = cli("--version")
    assert result.status == 0 and re.fullmatch(r"metaharness \S.*\n", result.out)
