"""What README shows is what the tests train on, and every command in it exists."""

import re
from pathlib import Path

import pytest
from own_task import DATA

from metaharness.cli.entry import COMMANDS
from metaharness.cli.parse import option_names

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["task.jsonl", "harness.toml"])
def test_the_files_are_shown_in_full(name):
    (shown,) = re.findall(rf"cat > {name} <<'END'\n(.*?)END\n", README, re.DOTALL)
    assert shown == (DATA / "cli" / name).read_text()


def test_every_command_is_in_the_table():
    for name in COMMANDS:
        assert f"`metaharness {name}" in README


def test_every_option_exists():
    known = {name for options in COMMANDS.values() for name in option_names(options)}
    named = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", README))
    assert named and named - known == set()
