"""Prepared data in the user's cache folder, safe against interruption and races."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from metaharness.errors import TaskError

ENVIRONMENT = "METAHARNESS_CACHE"


def cache_root() -> Path:
    """`$METAHARNESS_CACHE`, or `~/.cache/metaharness`. Not created here."""
    chosen = os.environ.get(ENVIRONMENT)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache/metaharness"


def prepared(key: str, prepare: Callable[[Path], None]) -> Path:
    """The folder of prepared data under `key`, made by `prepare` when absent.

    key: relative path that names the content (it holds a digest), so that an existing
    folder is never stale. prepare: fills the empty folder it is given. It works in a
    temporary sibling that is renamed at the end: an interrupted preparation leaves
    nothing under `key`, and of two at once the first to finish wins.

    Raises TaskError when the cache folder cannot be written.
    """
    target = cache_root() / key
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise TaskError(
            f"cache folder {target.parent}: expected to write there, got "
            f"{error.strerror}; set {ENVIRONMENT} to a folder of yours."
        ) from error
    try:
        prepare(made)
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target
