"""Preparation and reading of TFDS data in the cache folder, TensorFlow absent."""

import contextlib
import hashlib
import io
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from metaharness.runlog.progress import Progress
from metaharness.tasks.cache import prepared
from metaharness.tasks.jsonl import read_rows, text_field

if TYPE_CHECKING:
    import tensorflow_datasets as tfds

TIMEOUT_S = 5.0

Rows = dict[str, list[dict[str, str]]]


def find_file(folder: Path, name: str, stem: str) -> Path | None:
    """`stem`.jsonl or .jsonl.gz in the folder's subfolder `name`, or in the folder."""
    for place in (folder / name, folder):
        for suffix in (".jsonl", ".jsonl.gz"):
            if (place / (stem + suffix)).is_file():
                return place / (stem + suffix)
    return None


def prepare_files(
    name: str, builder: Callable[..., Any], files: Mapping[str, Path]
) -> tuple[Rows, str]:
    """Rows by split of local files, prepared once, and the digest of their content.

    builder: makes the TFDS builder from `files` and `data_dir`. The digest is the
    SHA-256 of the unpacked rows, so a packed copy of the same file is the same data.

    Raises TaskError on a row without the builder's fields.
    """
    digest = hashlib.sha256()
    for split, path in sorted(files.items()):
        digest.update(f"{split}\n".encode())
        for number, row in read_rows(path):
            fields = {f: text_field(path, number, row, f) for f in builder.FIELDS}
            digest.update(repr(sorted(fields.items())).encode())

    def prepare(folder: Path) -> None:
        with _progress(f"preparing {name}"), _quiet():
            builder(files=dict(files), data_dir=folder).download_and_prepare()

    key = f"{name}/{digest.hexdigest()[:16]}"
    return _read(prepared(key, prepare)), digest.hexdigest()


def prepare_catalogue(
    name: str, make: Callable[[], type["tfds.core.GeneratorBasedBuilder"]], url: str
) -> Rows:
    """Rows by split of a builder from TFDS's catalogue, downloaded once.

    make: imports and returns the builder's class. url: one of its files; asked for
    first, within `TIMEOUT_S`, because the download itself retries for minutes.

    Raises ConnectionError when the url does not answer or the download fails.
    """

    def prepare(folder: Path) -> None:
        request = urllib.request.Request(url, method="HEAD")
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ConnectionError(f"no answer from the network: {reason}") from error
        try:
            with _progress(f"downloading {name}"), _quiet():
                made = make()(data_dir=folder, file_format="array_record")
                made.download_and_prepare()
        except Exception as error:  # of TFDS, of requests, of the data
            reason = str(error).splitlines()[0] if str(error) else repr(error)
            raise ConnectionError(f"a failed download: {reason}") from error

    return _read(prepared(f"{name}/catalogue", prepare))


def _read(folder: Path) -> Rows:
    import tensorflow_datasets as tfds

    (info,) = folder.glob("*/*/dataset_info.json")
    builder = tfds.builder_from_directory(info.parent)
    return {
        split: [
            {field: value.decode("utf-8") for field, value in row.items()}
            for row in builder.as_data_source(split=split)
        ]
        for split in builder.info.splits
    }


def _progress(name: str) -> Progress:
    # bound to the real standard error, which `_quiet` hides from TFDS
    return Progress(name, console=Console(file=sys.stderr))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides what TFDS prints and draws."""
    sink = io.StringIO()
    with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        yield
