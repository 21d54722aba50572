"""A sweep runs each cell once, goes on where it was stopped, and loses nothing."""

import hashlib
import json
import shutil
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import sweep, sweep_cell, sweep_grid
from benchmarks.sweep import Sweep, main
from benchmarks.sweep_grid import read_grid
from metaharness.errors import InputError
from metaharness.train.baselines import read_best_random
from metaharness.train.evaluate_run import EvaluationRun

DATA = Path(__file__).parents[1] / "data"
GRID = """
[settings]
limit = 3

[models.tiny]
path = "MODEL"

[tasks.first]
task = "first.jsonl"
harness = "harness.toml"

[tasks.second]
task = "second.jsonl"
harness = "harness.toml"

[methods.zero_shot]

[methods.random]
num = 2
"""
LEARNED = """
[methods.learned.train]
search.warmup_steps = 1
search.relaxed_steps = 0
search.measured_steps = 1
search.samples = 4
search.relaxed_samples = 2
search.pack_width = 64
checkpoint.every = 1
evaluation.test_items = 1
evaluation.random_harnesses = 0
evaluation.sampled_harnesses = 0
evaluation.validation_items = 2
evaluation.validation_packs = 1
evaluation.generate = false
"""
IDS = [
    f"tiny/{task}/{method}/seed-0"
    for task in ("first", "second")
    for method in ("zero_shot", "random")
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tiny Llama with random weights, and room for some exemplars."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(DATA / "model/tiny_llama_tied", folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def grid_in(tiny):
    """Writes a grid, with its tasks and harness beside it."""

    def write(folder, text=GRID):
        for name in ("first", "second"):
            shutil.copy(DATA / "cli/task.jsonl", folder / f"{name}.jsonl")
        shutil.copy(DATA / "cli/harness.toml", folder)
        path = folder / "grid.toml"
        path.write_text(text.replace("MODEL", str(tiny)))
        return path

    return write


@pytest.fixture
def grid(grid_in, tmp_path):
    return grid_in(tmp_path)


@pytest.fixture(scope="module")
def swept(grid_in, tmp_path_factory):
    """A whole sweep, and what it loaded."""
    folder = tmp_path_factory.mktemp("sweep")
    loaded = []

    def counted(name):
        real = getattr(sweep_cell, name)

        def load(what, **options):
            loaded.append((name, Path(what).name, options.get("seed")))
            return real(what, **options)

        return load

    with pytest.MonkeyPatch.context() as patch:
        for name in ("load_model", "load_task"):
            patch.setattr(sweep_cell, name, counted(name))
        status = main(Sweep(grid_in(folder), folder / "out", quiet=True))
    return SimpleNamespace(
        grid=folder / "grid.toml", out=folder / "out", loaded=loaded, status=status
    )


def results(out):
    found = json.loads((out / "results.json").read_text())
    return found, {cell["id"]: cell for cell in found["cells"]}


def episodes(out, cell):
    text = (out / "cells" / cell / "evaluate/episodes.jsonl").read_text()
    rows = map(json.loads, text.splitlines())
    return [(row["uid"], str(row["choice"]), row["sample"]) for row in rows]


def test_every_cell_has_a_row_and_its_runs_files(swept):
    assert swept.status == 0
    found, cells = results(swept.out)
    assert found["complete"] and list(cells) == IDS
    for name, cell in cells.items():
        result = cell["result"]
        assert "model" not in cell["settings"]  # its path says nothing elsewhere
        assert result["measure"] == "exact match" and result["num_items"] == 3
        score = result["score"]
        assert 0 <= score["low"] <= score["mean"] <= score["high"] <= 1
        num = 2 if name.endswith("random/seed-0") else 1
        assert result["num_harnesses"] == num and result["calls"] == 3 * num
        assert (result["sd"] is None) == (num == 1)
        assert result["tokens"] > 0 and cell["seconds"] > 0
        assert len(episodes(swept.out, name)) == 3 * num
        assert sum(result["reached"].values()) == 3 * num
        assert result["measured"]["device"] == "cpu"
        prompt = result["prompt"]
        assert prompt["policies"]["retry"]["attempts"] == 1
        assert prompt["template"] and bool(prompt["exemplars"]) == (num > 1)
        scores = json.loads(
            (swept.out / cell["run"] / "evaluate/scores.json").read_text()
        )
        assert "billing" in scores["prompts"][0]["text"] or num == 1
    lines = (swept.out / "table.md").read_text().splitlines()
    assert sum(line.startswith("| tiny |") for line in lines) == 4
    assert "partial" not in lines[-1]


def test_results_can_be_shared_without_texts_of_data_sets(swept, tmp_path):
    path = tmp_path / "new/shared.json"
    assert main(Sweep(swept.grid, swept.out, share=path, quiet=True)) == 0
    text = path.read_text()
    whole, cells = results(swept.out)
    question = json.loads((DATA / "cli/task.jsonl").read_text().splitlines()[0])
    for own, cell in zip(json.loads(text)["cells"], cells.values(), strict=True):
        asked, kept = cell["result"].pop("prompt"), own["result"].pop("prompt")
        assert own == cell
        said = asked.pop("text")
        assert kept.pop("text_sha256") == hashlib.sha256(said.encode()).hexdigest()
        assert kept == asked and said not in text
    assert whole["cells"] and question["question"] not in text


def test_models_and_tasks_are_loaded_once(swept):
    assert sorted(name for name, *_ in swept.loaded) == [
        "load_model",
        "load_task",
        "load_task",
    ]


def test_done_cells_are_skipped(swept, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "run_cell", None)
    assert main(Sweep(swept.grid, swept.out)) == 0
    assert capsys.readouterr().out.count("| tiny |") == 4
    assert main(Sweep(swept.grid, swept.out, dry_run=True, only="*/first/*")) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in listed] == IDS[:2]
    assert all("done, exact match" in line for line in listed)


def test_an_interrupted_cell_goes_on_without_repeating_an_episode(
    swept, grid, tmp_path, monkeypatch, capsys
):
    out, real = tmp_path / "out", EvaluationRun.keep
    kept = []

    def interrupted(run, plan, trace):
        real(run, plan, trace)
        kept.append(trace.uid)
        if len(kept) == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EvaluationRun, "keep", interrupted)
        config = Sweep(grid, out, only="first", quiet=True)
        assert main(config) == sweep.INTERRUPTED
    # the first cell is done, of the second one an episode
    assert len(episodes(out, IDS[0])) == 3 and len(episodes(out, IDS[1])) == 1
    assert "partial: 1 of 4 cells" in (out / "table.md").read_text()
    main(Sweep(grid, out, dry_run=True))
    assert f"{IDS[1]}: started, 1 episodes done" in capsys.readouterr().out
    again = []
    monkeypatch.setattr(
        EvaluationRun, "keep", lambda *a: (again.append(a[2].uid), real(*a))
    )
    assert main(config) == 0
    assert len(again) == 5
    assert sorted(episodes(out, IDS[1])) == sorted(episodes(swept.out, IDS[1]))
    (found, mine), (_, whole) = results(out), results(swept.out)
    assert mine[IDS[1]]["result"] == whole[IDS[1]]["result"]
    assert found["num_done"] == 2 and not found["complete"]
    assert "partial: 2 of 4 cells" in (out / "table.md").read_text()


def test_a_failing_cell_is_recorded_and_tried_again(grid, tmp_path, monkeypatch):
    out, task = tmp_path / "out", tmp_path / "first.jsonl"
    held = task.read_bytes()
    task.unlink()
    config = Sweep(grid, out, only="zero_shot", quiet=True)
    assert main(config) == sweep.SOME_FAILED
    _, cells = results(out)
    assert [cells[name]["status"] for name in IDS[::2]] == ["failed", "done"]
    assert "first.jsonl" in cells[IDS[0]]["error"]
    table = (out / "table.md").read_text()
    assert "failed: " in table and "partial: 1 of 4 cells, 1 failed" in table
    task.write_bytes(held)
    assert main(config) == 0
    assert results(out)[1][IDS[0]]["status"] == "done"


def test_cells_of_another_grid_are_refused_by_name(swept, grid_in, tmp_path):
    before = (swept.out / "results.json").read_bytes()
    first = swept.out / "cells" / IDS[0] / "cell.json"
    other = GRID.replace("[tasks.second]\n", "[tasks.second]\nlimit = 2\n")
    with pytest.raises(InputError) as error:
        main(Sweep(grid_in(tmp_path, other), swept.out))
    said = str(error.value)
    assert "2 of them" in said and "limit 3 → 2" in said
    assert all(name in said for name in IDS[2:])
    assert not any(name in said for name in IDS[:2])
    # a harness file whose contents changed
    (tmp_path / "harness.toml").write_text("[template]\nnamed = 'short'\n")
    (tmp_path / "grid.toml").write_text(
        GRID.replace("MODEL", json.loads(first.read_text())["settings"]["model"])
    )
    with pytest.raises(InputError, match="random/seed-0: harness_sha256"):
        main(Sweep(tmp_path / "grid.toml", swept.out))
    assert (swept.out / "results.json").read_bytes() == before


def test_a_training_is_known_by_what_the_grid_says_of_it(grid_in, tmp_path):
    *_, cell = read_grid(grid_in(tmp_path, GRID + LEARNED), models={})
    written = [line.split(" = ")[0] for line in LEARNED.split("\n") if "=" in line]
    own = {"search.warmup_steps", "search.measured_steps"}  # these are the defaults
    assert set(cell.identity()["train"]) == {*written} - own


def test_a_grid_may_grow(swept, grid_in, tmp_path, capsys):
    more = GRID.replace("[settings]", "seeds = [0, 1]\n[settings]")
    main(Sweep(grid_in(tmp_path, more), swept.out, dry_run=True))
    listed = capsys.readouterr().out
    assert listed.count("done, ") == 4 and listed.count(": to do") == 4


def test_a_training_that_was_interrupted_is_resumed(grid_in, tmp_path, monkeypatch):
    grid, out, calls = grid_in(tmp_path, GRID + LEARNED), tmp_path / "out", []

    def train(model, task, harness, config, *, resume):
        calls.append((config, resume))
        folder = out / "cells/tiny/first/learned/seed-0/train"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        return SimpleNamespace(interrupted=True)

    monkeypatch.setattr(sweep_cell, "train", train)
    config = Sweep(grid, out, only="first/learned", quiet=True)
    assert main(config) == main(config) == sweep.INTERRUPTED
    (first, nothing), (none, resumed) = calls
    assert first.search.samples == 4 and first.out == resumed
    assert first.harness == tmp_path / "harness.toml" and first.seed == 0
    assert nothing is None and none is None


@pytest.mark.slow
def test_a_learned_cell_is_trained_once_and_evaluated(grid_in, tmp_path, monkeypatch):
    grid, out = grid_in(tmp_path, GRID + LEARNED), tmp_path / "out"
    config = Sweep(grid, out, only="first/learned", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(sweep_cell, "run_evaluation", None)
        assert main(config) == sweep.SOME_FAILED  # trained, not evaluated
    monkeypatch.setattr(sweep_cell, "train", None)
    assert main(config) == 0
    cell = results(out)[1]["tiny/first/learned/seed-0"]
    assert cell["result"]["training_updates"] == 2
    assert cell["result"]["training_tokens"] > 0 and cell["result"]["num_items"] == 3
    scores = json.loads((out / cell["run"] / "evaluate/scores.json").read_text())
    assert [row["method"] for row in scores["scores"]] == ["mode", "best_random"]
    run = out / cell["run"] / "train"
    (searched,) = json.loads((run / "baselines.json").read_text())[
        "best_random"
    ].values()
    (choice,) = read_best_random(run).values()
    assert choice._asdict() == {
        **searched["choice"],
        "exemplars": tuple(searched["choice"]["exemplars"]),
    }
    own, other = cell["result"], cell["result"]["best_random"]
    assert own["prompt"]["text"] and other["num_episodes"] == own["num_episodes"] == 3
    assert sum(own["reached"].values()) == sum(other["reached"].values()) == 3
    gap = own["score"]["mean"] - other["score"]["mean"]
    assert own["over_best_random"]["mean"] == pytest.approx(gap)
    assert " at equal tokens " in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "limit = 3",
            "limits = 3",
            "grid.toml:2: .*got 'limits'; did you mean 'limit'",
        ),
        ("limit = 3", 'limit = "3"', "grid.toml:2: limit: .*whole number, got '3'"),
        ("limit = 3", "limit = 0", "grid.toml:1: limit: expected a value >= 1"),
        ("limit = 3", "samples = 2", "temperature: expected one above 0 for 2"),
        ("num = 2", "nun = 2", "got 'nun'; did you mean 'num'"),
        ("num = 2", "num = 0", "whole number num of 1 or more, got 0"),
        ("[methods.random]", "[methods.rand]", "kind among zero_shot, default, random"),
        ("[settings]", "[setting]", "got 'setting'; did you mean 'settings'"),
        ("[tasks.first]", "[tasks.'a/b']", "it names a folder"),
        ("harness.toml", "none.toml", "none.toml: expected a harness file, got none"),
        ('harness = "harness.toml"', "", "a default one .*got .*first.jsonl"),
        ("num = 2", LEARNED.replace("samples", "sample"), "did you mean 'samples'"),
        ("num = 2", LEARNED.replace("= 64", "= 6"), "search.pack_width: expected"),
        ("num = 2", LEARNED + "seed = 1", "expected field among .*got 'seed'"),
        ("[models.tiny]", "[models]", "a table \\[models.path\\]"),
        ("[settings]", "seeds = [0, 0]\n[settings]", "different whole numbers"),
    ],
)
def test_a_grid_with_a_mistake_is_refused(grid_in, tmp_path, old, new, said):
    path = grid_in(tmp_path, GRID.replace(old, new).strip())
    with pytest.raises(InputError, match=said):
        read_grid(path, models={})


def test_a_models_path_comes_from_the_environment_or_an_option(
    grid_in, tmp_path, monkeypatch
):
    monkeypatch.delenv("TINY", raising=False)
    path = grid_in(tmp_path, GRID.replace("MODEL", "$TINY"))
    (tiny, *_) = read_grid(path, models={})
    assert tiny.model_path is None
    config = Sweep(path, tmp_path / "out", only="first/zero_shot", quiet=True)
    assert main(config) == sweep.SOME_FAILED
    _, cells = results(tmp_path / "out")
    assert "pass --model tiny=PATH" in cells[IDS[0]]["error"]
    assert read_grid(path, models={"tiny": "a"})[0].model_path == "a"
    monkeypatch.setenv("TINY", "b")
    assert read_grid(path, models={})[0].model_path == "b"
    with pytest.raises(InputError, match="expected one of tiny, got 'tony'"):
        read_grid(path, models={"tony": "a"})


def test_the_grid_in_the_documentation_can_be_read(tmp_path):
    lines = sweep_grid.__doc__.split("\n\n    ", 1)[1].split("\nA method")[0]
    path = tmp_path / "grid.toml"
    path.write_text(textwrap.dedent("    " + lines))
    (tmp_path / "parcels.toml").write_text("[template]\nnamed = 'short'\n")
    cells = read_grid(path, models={})
    assert len(cells) == 2 * 4 * 2
    learned = next(cell for cell in cells if cell.method.kind == "learned")
    assert learned.method.train.search.measured_steps == 8
    assert learned.settings.limit == 1319
    assert learned.settings.data_dir == tmp_path / "data"


def test_the_grid_of_the_checkout_can_be_read():
    grids = Path(sweep.__file__).parent / "grids"
    for path in grids.glob("*.toml"):
        cells = read_grid(path, models={})
        assert len({cell.id for cell in cells}) == len(cells) > 0
