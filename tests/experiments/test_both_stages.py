"""Both experiments of two stages run through; a partial table says what it lacks."""

import dataclasses
import gzip
import itertools
import json

import numpy as np
import pytest
import tiny_space

from experiments import both_stages, mixed_tasks
from experiments.instruction_induction import FILE, load_instruction
from metaharness.errors import TaskError

WORDS = [
    a + b
    for a, b in itertools.product(
        map("".join, itertools.product("klmnprst", "ao")), repeat=2
    )
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Made-up items in the layout of the real file."""
    folder = tmp_path_factory.mktemp("data")
    rules = {
        "first_word_letter": lambda w: w[0],
        "singular_to_plural": lambda w: w + "s",
        "letters_list": lambda w: " ".join(w),
        "num_to_verbal": lambda w: w.upper(),
        "second_word_letter": lambda w: [w[1]],
    }
    rows = [
        {
            "task": name,
            "split": split,
            "input": f"{split[0]}{word}",
            "output": rule(word),
        }
        for name, rule in rules.items()
        for split in ("induce", "execute")
        for word in WORDS
    ]
    path = folder / FILE
    path.parent.mkdir()
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return folder


def test_a_task_keeps_its_official_test_items(data_dir):
    task = load_instruction("second_word_letter", data_dir)
    assert {item.question[0] for item in task.test} == {"e"}
    assert {item.question[0] for item in (*task.pool, *task.train)} == {"i"}
    assert all(item.answer == item.question[2] for item in task.test)


def test_missing_data_is_named(data_dir, tmp_path):
    with pytest.raises(TaskError, match="found no file"):
        load_instruction("antonyms", tmp_path)
    with pytest.raises(TaskError, match="antonyms"):
        load_instruction("antonyms", data_dir)


def config(data_dir, out, *methods):
    return both_stages.BothStagesConfig(
        quick=True,
        data_dir=data_dir,
        out=out,
        tasks=("first_word_letter",),
        methods=methods,
        dtype="float32",
    )


@pytest.mark.slow
def test_cells_are_appended_and_a_partial_table_says_so(
    data_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        both_stages, "load_model", lambda *_, **__: tiny_space.make_model()
    )
    first = both_stages.main(config(data_dir, tmp_path, "two_stage"))
    (cell,) = first["cells"]
    assert cell["seeds"] == 2 and cell["updates"] == 6
    losses = {name: own["loss"].mean for name, own in cell["cells"].items()}
    assert len(losses) == 6 and all(np.isfinite(list(losses.values())))
    assert losses["base_seed"] != losses["adapted_seed"]
    total = cell["effects"]["total"].mean
    assert total == pytest.approx(losses["adapted_learned"] - losses["base_seed"])
    table = (tmp_path / "table.md").read_text()
    assert "Partial: 23 of 24 cells are missing" in table
    # done cells are not computed again
    monkeypatch.setattr(both_stages, "run_cell", None)
    monkeypatch.setattr(both_stages, "load_model", lambda *_, **__: None)
    again = both_stages.main(config(data_dir, tmp_path, "two_stage"))
    assert len(again["cells"]) == 1
    other = dataclasses.replace(config(data_dir, tmp_path, "two_stage"), phi_rate=0.2)
    with pytest.raises(SystemExit, match="another configuration"):
        both_stages.main(other)


@pytest.mark.slow
def test_mixed_tasks_run_through(data_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(
        mixed_tasks, "load_model", lambda *_, **__: tiny_space.make_model()
    )
    result = mixed_tasks.main(
        mixed_tasks.MixedTasksConfig(quick=True, data_dir=data_dir, out=tmp_path)
    )
    assert len(result["together"]["difference"]["task"]["by_task"]) == 4
    assert "fifth" in result and (tmp_path / "table.md").is_file()


def gap(mean, half):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def verdict(by_task, mean, fifth):
    return mixed_tasks.verdict(
        {
            "together": {
                "tasks": ["a", "b"],
                "difference": {"task": {"by_task": by_task, "mean": mean}},
            },
            "fifth": {"difference": fifth},
        }
    )


def test_the_verdict_follows_the_intervals():
    good, bad, open_ = gap(-1, 0.5), gap(1, 0.5), gap(0.1, 0.5)
    said = verdict([good, open_], good, [open_, good, bad])
    assert "on no task and better on the mean" in said
    assert "better halfway" in said and "worse at the end" in said
    said = verdict([bad, good], open_, [open_] * 3)
    assert "worse than shared ones on a;" in said and "no gain is shown" in said
    assert said.count("no difference shown") == 2
