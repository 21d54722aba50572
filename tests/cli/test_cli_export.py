"""`metaharness export`: forms on standard output or in a file, and every refusal."""

import io
import json
import shutil

import pytest
from own_task import DATA, OWN

from metaharness.cli.entry import COMMANDS
from metaharness.cli.export import FORMS
from metaharness.cli.parse import parse
from metaharness.errors import InputError
from metaharness.harness.from_file import harness_from_file
from metaharness.harness.learned import Learned
from metaharness.harness.slots import Choice
from metaharness.tasks.registry import load_task


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run directory as far as an export reads it, and a tokenizer without weights."""
    folder = tmp_path_factory.mktemp("export")
    model = folder / "tokenizer"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DATA / "model/tiny_llama_tied" / name, model)
    learned = Learned(
        harness_from_file(OWN[3], load_task(OWN[1])),
        {"task": Choice((2, 1), 1)},
        {"exemplars": {"task": (0.1, 0.9, 0.9, 0.1)}, "template": {"task": (0.2, 0.8)}},
        str(model),
        "ab" * 32,
    )
    (folder / "run").mkdir()
    (folder / "run/harness.json").write_text(json.dumps(learned.as_json()))
    return folder / "run", learned


@pytest.fixture
def run(source, tmp_path):
    return shutil.copytree(source[0], tmp_path / "run")


def test_the_forms_are_those_that_the_option_takes():
    for name in FORMS:
        assert parse(["export", "run", "--to", name], COMMANDS).to == name
    for words, said in ((["--to", "yaml"], str(tuple(FORMS))), ([], "--to")):
        with pytest.raises(InputError) as caught:
            parse(["export", "run", *words], COMMANDS)
        assert said in str(caught.value)


def test_text_is_the_prompt_that_generate_shows(source, cli, tiny):
    words = ("Where is my box?", "--harness", source[0], "--model", tiny)
    shown = cli("generate", *words, "--show-prompt", "--max-new-tokens", 1).out
    result = cli("export", source[0], "--to", "text", "--question", words[0])
    assert result.status == 0 and result.err == ""
    assert result.out.endswith("<|assistant|>\n")
    assert shown.startswith(result.out)


def test_every_form_goes_to_standard_output(run, source, cli):
    said = {form: cli("export", run, "--to", form) for form in FORMS}
    for form, result in said.items():
        assert result.status == 0 and result.err == "", form
    _, exemplars = source[1].parts()
    first = exemplars[0].question
    messages = json.loads(said["messages"].out)
    assert messages[0] == {"role": "user", "content": first}
    assert "{question}" in messages[-1]["content"]
    data = json.loads(said["json"].out)
    assert data["tasks"]["task"]["exemplars"][0]["question"] == first
    assert json.loads(said["dspy"].out)["demos"][0]["question"] == first
    assert said["text"].out.count("{question}") == 1
    assert said["text"].out.index(first) < said["text"].out.index("{question}")


def test_the_file_itself_can_be_named_and_the_question_piped(run, cli, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Is it late?\n"))
    result = cli(
        *("export", run / "harness.json", "--to", "messages", "--question", "-")
    )
    last = json.loads(result.out)[-1]["content"]
    assert last == "Which team: billing, delivery or returns?\nIs it late?"


def test_a_file_is_written_letter_by_letter_and_replaced_only_by_force(run, cli):
    out = run / "prompt.txt"
    words = ("export", run, "--to", "text")
    printed = cli(*words).out
    assert cli(*words, "--out", out) == (0, "", "")
    assert out.read_bytes() == printed.encode()
    out.write_text("mine")
    result = cli(*words, "--out", out)
    assert result.status == 2 and "pass --force" in result.err
    assert out.read_text() == "mine"
    assert cli(*words, "--out", out, "--force").status == 0
    assert out.read_bytes() == printed.encode()


@pytest.mark.parametrize("form", list(FORMS))
def test_weights_that_were_learned_with_the_prompt_are_named(run, cli, form):
    (run / "adapter").mkdir()
    assert cli("export", run, "--to", form).err == ""
    (run / "adapter/adapter_config.json").write_text("{}")
    for named in (run, run / "harness.json"):
        result = cli("export", named, "--to", form)
        assert result.status == 0
        if form == "json":
            assert result.err == ""
        else:
            assert result.err.count("\n") == 1
            assert "learned together with the weights in" in result.err
            assert str(run / "adapter") in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "json", "--question", "x"), "text or messages, got it with json"),
        (("--to", "messages", "--model", "x"), "--to text, got it with messages"),
        (("--to", "text", "--question", " "), "expected text, got none"),
        (("--to", "text", "--model", "smolm2-135m"), "did you mean 'smollm2-135m'"),
        *(
            (("--to", form, "--task", "other"), "among task, got 'other'")
            for form in FORMS
        ),
        (("--to", "json", "--out", "no/such/folder.json"), "no no/such; make it"),
        (("--to", "json", "--force", "--out", "."), "found something else"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(run, cli, words, said):
    before = sorted(run.parent.rglob("*"))
    result = cli("export", run, *words)
    assert result.status == 2 and result.out == ""
    assert result.err.startswith("error: ") and result.err.count("\n") == 1
    assert said in result.err
    assert sorted(run.parent.rglob("*")) == before


def test_a_run_that_is_not_there_is_refused(cli, tmp_path):
    result = cli("export", tmp_path / "none", "--to", "json")
    assert result.status == 2 and "found no such file" in result.err
