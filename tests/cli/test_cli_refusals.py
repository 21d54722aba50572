"""Malformed input: one line with place and remedy, status 2, nothing left behind."""

import json

import pytest

from metaharness.cli.entry import COMMANDS

OWN = ("train", "--task", "task.jsonl", "--harness", "harness.toml")
LISTED = """\
[exemplars]
k = {k}

[[exemplars.pool]]
question = "Where is my parcel?"
answer = "delivery"

[[exemplars.pool]]
question = {question}
answer = {answer}

[[template.candidates]]
name = "bare"
question = {template}
"""


@pytest.fixture
def refuse(cli, project):
    """Trains on the folder's files; the refusal's one line."""

    def run(*words, model="smollm2-135m"):
        before = sorted(project.rglob("*"))
        result = cli(
            *OWN, "--model", model, "--out", "run", "--search.samples", 4, *words
        )
        assert result.status == 2
        assert result.out == ""
        assert result.err.startswith("error: ") and result.err.count("\n") == 1
        assert sorted(project.rglob("*")) == before, "something was left behind"
        return result.err

    return run


def edit(path, line, text):
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines) + "\n")


def listed(project, **changed):
    values = {
        "k": 1,
        "question": json.dumps("I was charged twice."),
        "answer": json.dumps("billing"),
        "template": json.dumps("{question}"),
    }
    (project / "harness.toml").write_text(LISTED.format(**values | changed))


def test_a_line_that_is_not_json(refuse, project):
    edit(project / "task.jsonl", 3, '{"question": "no end')
    said = refuse()
    assert "task.jsonl:3: expected one JSON object" in said
    assert "fix or remove the line" in said


def test_a_missing_field(refuse, project):
    edit(project / "task.jsonl", 7, '{"question": "Where is it?"}')
    said = refuse()
    assert "task.jsonl:7: expected text in field 'answer', got none" in said
    assert "fill it in" in said


def test_an_empty_pool(refuse, project):
    (project / "harness.toml").write_text("[exemplars]\nk = 1\npool = []\n")
    said = refuse()
    assert "harness.toml:3:" in said and "at least 1 exemplar" in said
    assert "add exemplars" in said


def test_duplicate_candidates(refuse, project):
    same = {"question": '"Where is my parcel?"', "answer": '"delivery"'}
    listed(project, **same)
    said = refuse()
    assert "harness.toml:8: expected distinct candidates" in said
    assert "harness.toml:4; remove one" in said


def test_more_exemplars_than_candidates(refuse, project):
    listed(project, k=3)
    said = refuse()
    assert "harness.toml:2:" in said and "between 1 and 2, got 3" in said
    assert "lower k or add exemplars" in said


def test_an_unknown_slot(refuse, project):
    (project / "harness.toml").write_text("\n[examplars]\nk = 1\n")
    said = refuse()
    assert "harness.toml:2: expected slot among exemplars, template" in said
    assert "did you mean 'exemplars'?" in said


def test_a_template_without_its_placeholder(refuse, project):
    listed(project, template='"Answer this."')
    said = refuse()
    assert "harness.toml:12:" in said and "{question} once" in said
    assert "put it where the question goes" in said


def test_an_exemplar_that_is_too_long(refuse, project, tiny):
    listed(project, question=json.dumps("why? " * 400))
    said = refuse(model=tiny)
    assert "harness.toml:8: expected an exemplar of at most 341 tokens" in said
    assert "shorten it" in said


def test_an_exemplar_of_the_task_that_is_too_long(refuse, project, tiny):
    for line in range(1, 21):  # whichever of them comes into the pool
        question = f"{line} " + "why? " * 400
        row = {"question": question, "answer": "delivery"}
        edit(project / "task.jsonl", line, json.dumps(row))
    said = refuse(model=tiny)
    assert "exemplar 'task:task:" in said and "shorten or remove it" in said


def test_an_exemplar_from_the_test_split(refuse, project):
    with open(project / "task.jsonl", "a") as file:
        for split in ("test", "validation"):
            question = f"Is this the {split} item that nobody may see?"
            row = {"question": question, "answer": "returns", "split": split}
            file.write(json.dumps(row) + "\n")
    question = json.dumps("is this the TEST item that nobody may see?")
    listed(project, question=question, answer='"returns"')
    said = refuse()
    assert "harness.toml:8: expected no exemplar from the test split" in said
    assert "task:21" in said and "remove it from the pool" in said


def test_an_unknown_option(refuse):
    said = refuse("--serch.tau", "0.5")
    assert "got '--serch.tau'; did you mean --search.tau?" in said


def test_files_that_are_not_there(cli, project):
    for words, name in (
        (("train", "--task", "nothing.jsonl"), "nothing.jsonl"),
        (("train", "--harness", "nothing.toml"), "nothing.toml"),
        ((*OWN, "--model", "no.gguf"), "no.gguf"),
        (("show", "nowhere"), "nowhere"),
        (("evaluate", "nowhere"), "nowhere"),
        (("generate", "hi", "--harness", "nowhere"), "nowhere"),
    ):
        result = cli(*words)
        assert result.status == 2 and name in result.err, words
        assert result.err.count("\n") == 1
    assert not (project / "runs").exists()


def test_a_pool_that_the_task_cannot_fill_names_the_option(cli, project):
    result = cli("train", "--task", "task.jsonl")
    assert result.status == 2 and result.err.count("\n") == 1
    assert "at least 10" in result.err and "got 5" in result.err
    assert "--slots.pool 5" in result.err


def test_an_unknown_task_suggests_one(cli):
    result = cli("train", "--task", "gsm9k")
    assert result.status == 2 and "did you mean 'gsm8k'?" in result.err


def test_two_tasks_of_one_name(cli, project, tiny):
    other = project / "other"
    other.mkdir()
    (other / "task.jsonl").write_bytes((project / "task.jsonl").read_bytes())
    both = ("--task", "task.jsonl", "other/task.jsonl")
    result = cli(*OWN, *both, "--model", tiny)
    assert result.status == 2 and "different names" in result.err
    assert not (project / "runs").exists()


def test_gsm8k_without_data_says_what_to_fetch(cli, project, monkeypatch):
    monkeypatch.setenv("METAHARNESS_CACHE", str(project / "cache"))
    result = cli("train", "--task", "gsm8k", "--data-dir", "data")
    assert result.status == 2 and result.err.count("\n") == 1
    for part in ("train.jsonl", "test.jsonl", "https://", "data/gsm8k/", "--data-dir"):
        assert part in result.err


def test_gsm8k_without_a_network_says_what_to_fetch(cli, project, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no route")

    monkeypatch.setenv("METAHARNESS_CACHE", str(project / "cache"))
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    result = cli("train", "--task", "gsm8k")
    assert result.status == 2 and result.err.count("\n") == 1
    for part in ("network", "train.jsonl", "https://", "gsm8k/", "--data-dir"):
        assert part in result.err


def test_an_output_folder_that_is_in_use(cli, project, tiny):
    (project / "run").mkdir()
    (project / "run/mine.txt").write_text("mine")
    result = cli(*OWN, "--model", tiny, "--out", "run")
    assert result.status == 2 and "another folder" in result.err
    assert [path.name for path in (project / "run").iterdir()] == ["mine.txt"]


def test_ctrl_c_is_clean(cli, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(COMMANDS["tasks"], "execute", interrupted)
    assert cli("tasks") == (130, "", "interrupted\n")


def test_a_failure_of_our_own_keeps_its_traceback(cli, monkeypatch):
    def broken(_):
        raise KeyError("not the user's doing")

    monkeypatch.setattr(COMMANDS["tasks"], "execute", broken)
    with pytest.raises(KeyError):
        cli("tasks")


def test_the_traceback_of_a_refusal_can_be_had(cli, monkeypatch):
    monkeypatch.setenv("METAHARNESS_TRACEBACK", "1")
    with pytest.raises(ValueError, match="nowhere"):
        cli("show", "nowhere")
