"""A user's folder with a task and a harness file, and a model small enough to train."""

import json
import shutil
from typing import NamedTuple

import pytest
from own_task import DATA

from metaharness.cli import main


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys):
    """Runs a command in this process."""

    def run(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The tiny Llama with random weights, and room for some exemplars."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(DATA / "model/tiny_llama_tied", folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The working folder, with README's task.jsonl and harness.toml."""
    for name in ("task.jsonl", "harness.toml"):
        shutil.copy(DATA / "cli" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
