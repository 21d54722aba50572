"""The landscape file: every harness of a small space, its losses and its rewards.

One ``.npz`` without pickled objects. ``header`` holds UTF-8 JSON: what was evaluated,
with which model, and the sha256 of every other array. ``load_landscape`` checks all of
it. ``experiments.landscape`` writes such files; any optimiser may read them:

    landscape = load_landscape("gsm8k.npz")
    losses = landscape.losses(template, shots)          # float32 [rows], in jit too
    landscape.regret(best_template, best_shots)         # nats above the optimum
"""

import dataclasses
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimators import Family
from metaharness.errors import RunError
from metaharness.runlog import jsonfile

FORMAT, VERSION = "metaharness-landscape", 1
ARRAYS = {
    "template": (np.int32, 1),
    "shots": (np.int32, 2),
    "losses": (np.float32, 2),
    "reward": (np.bool_, 2),
    "num_answer": (np.int32, 1),
    "tokens": (np.int32, 1),
}
"""Name -> dtype and rank of every array of the file."""
FIELDS = ("config", "slots", "templates", "exemplars", "items", "identity", "sha256")
"""What the header must hold besides format and version."""
_MOST_CELLS = 20_000_000  # of the lookup table


class Table(NamedTuple):
    """A landscape on the device, an argument of jitted functions.

    losses: float32 ``[harness, item]``; index: int32 ``[template, pool, ..., pool]``
    (one pool axis a place), the harness with these parts, or -1 where an exemplar
    occurs twice.
    """

    losses: jax.Array
    index: jax.Array


def table_rows(table: Table, template: jax.Array, shots: jax.Array) -> jax.Array:
    """Harness numbers int32 ``[...]`` of ``template [...]`` and ``shots [..., k]``."""
    return table.index[(template, *jnp.moveaxis(shots, -1, 0))]


def table_losses(
    table: Table,
    template: jax.Array,
    shots: jax.Array,
    items: jax.Array | None = None,
) -> jax.Array:
    """Mean loss of each row's harness over the items, float32 ``[row]``; jittable.

    Args:
        template: int32 ``[row]``.
        shots: int32 ``[row, k]``, in prompt order; a row that shows an exemplar twice
            gives NaN.
        items: int32 ``[item]``, read by all rows, or ``[row, item]``; None is all.
    """
    at = table_rows(table, template, shots)
    if items is None:
        losses = table.losses[at]
    elif items.ndim == 1:
        losses = table.losses[at[:, None], items]
    else:
        losses = jnp.take_along_axis(table.losses[at], items, axis=1)
    return jnp.where(at >= 0, losses.mean(axis=-1), jnp.nan)


@dataclasses.dataclass(frozen=True)
class Landscape:
    """Every harness of a space; ``load_landscape`` reads one.

    template: int32 ``[harness]``; shots: int32 ``[harness, k]``, in prompt order;
    harnesses are ordered by template, then by their shots.
    loss: float32 ``[harness, item]``, summed nats of the gold answer.
    reward: bool ``[harness, item]``, whether each token of the gold answer is the
    likeliest one given those before it (what greedy decoding would write).
    num_answer: int32 ``[item]``; tokens: int32 ``[harness]``, run through the model.
    header: what was evaluated; see ``FIELDS``.
    """

    template: np.ndarray
    shots: np.ndarray
    loss: np.ndarray
    reward: np.ndarray
    num_answer: np.ndarray
    tokens: np.ndarray
    header: Mapping[str, Any]

    @property
    def families(self) -> dict[str, Family]:
        """Slot -> family, "template" and "exemplars"; orders matter: a ranking."""
        return {slot: Family(**own) for slot, own in self.header["slots"].items()}

    @property
    def num_items(self) -> int:
        return self.loss.shape[1]

    @cached_property
    def mean_losses(self) -> np.ndarray:
        """Mean over all items, float64 ``[harness]``."""
        return self.loss.mean(axis=1, dtype=np.float64)

    @cached_property
    def index(self) -> np.ndarray:
        """As ``Table.index``, on the host."""
        families = self.families
        pool = families["exemplars"].n
        index = np.full(
            (families["template"].n, *(pool,) * self.shots.shape[1]), -1, np.int32
        )
        index[(self.template, *self.shots.T)] = np.arange(len(self.template))
        return index

    @property
    def table(self) -> Table:
        """For ``table_losses``; put on the device at every call (in jit: constants)."""
        return Table(jnp.asarray(self.loss), jnp.asarray(self.index))

    def losses(
        self,
        template: jax.Array,
        shots: jax.Array,
        items: jax.Array | None = None,
    ) -> jax.Array:
        """``table_losses`` of this landscape."""
        return table_losses(self.table, template, shots, items)

    @property
    def best(self) -> int:
        """The harness with the lowest mean loss."""
        return int(self.mean_losses.argmin())

    def mean_loss(self, template: Any, shots: Any) -> np.ndarray:
        """Mean loss over all items, float64 ``[...]``; NaN for a repeated exemplar."""
        parts = (np.asarray(template), *np.moveaxis(np.asarray(shots), -1, 0))
        at = self.index[parts]
        return np.where(at >= 0, self.mean_losses[at], np.nan)

    def regret(self, template: Any, shots: Any) -> np.ndarray:
        """Mean loss over all items above the optimum, nats, float64 ``[...]``."""
        return self.mean_loss(template, shots) - self.mean_losses[self.best]

    def percentile(self, template: Any, shots: Any) -> np.ndarray:
        """Share of all harnesses that are strictly worse, in [0, 1), ``[...]``."""
        losses = self.mean_loss(template, shots)
        ordered = np.sort(self.mean_losses)
        worse = len(ordered) - np.searchsorted(ordered, losses, side="right")
        return np.where(np.isnan(losses), np.nan, worse / len(ordered))


def save_landscape(path: Path, landscape: Landscape) -> None:
    """Write the file; readers see the old one or the new one, never a part.

    The digests in the header are computed here.
    """
    arrays = {name: _array(landscape, name) for name in ARRAYS}
    header = {
        **landscape.header,
        "format": FORMAT,
        "version": VERSION,
        "sha256": {name: digest_of(array) for name, array in arrays.items()},
    }
    text = jsonfile.dumps(header).encode()
    arrays["header"] = np.frombuffer(text, np.uint8)
    write_arrays(path, arrays)


def load_landscape(path: str | Path) -> Landscape:
    """Read and check a landscape file.

    Raises:
        RunError: no such file, not a landscape, another version, a missing part, or an
            array that is not the one that was written.
    """
    path = Path(path)
    arrays = read_arrays(path)
    try:
        header = json.loads(arrays["header"].tobytes())
    except (KeyError, ValueError) as error:
        raise RunError(
            f"{path}: expected a landscape file with a JSON header, got {error!r}; "
            "make one with python -m experiments.landscape"
        ) from error
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise RunError(
            f"{path}: expected {FORMAT} version {VERSION}, got "
            f"{header.get('format')} version {header.get('version')}; make it again "
            "with python -m experiments.landscape"
        )
    missing = [name for name in FIELDS if name not in header]
    missing += [name for name in ARRAYS if name not in arrays]
    if missing:
        raise RunError(
            f"{path}: {', '.join(missing)} missing from the landscape; make it again"
        )
    for name, (dtype, rank) in ARRAYS.items():
        array = arrays[name]
        if array.dtype != dtype or array.ndim != rank:
            raise RunError(
                f"{path}: array {name}: expected {np.dtype(dtype)} of rank {rank}, got "
                f"{array.dtype} of rank {array.ndim}; make the landscape again"
            )
        if digest_of(array) != header["sha256"].get(name):
            raise RunError(
                f"{path}: array {name} is not the one that was written (sha256 "
                "differs); copy the file again or make it again"
            )
    landscape = Landscape(
        arrays["template"],
        arrays["shots"],
        arrays["losses"],
        arrays["reward"],
        arrays["num_answer"],
        arrays["tokens"],
        header,
    )
    _check(path, landscape)
    return landscape


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``.npz`` through a temporary file beside it; same arrays, same bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(buffer.getvalue())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an ``.npz`` without pickled objects.

    Raises:
        RunError: no such file, or not such an archive.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise RunError(f"{path}: expected a file, found none; check the path") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(
            f"{path}: expected an .npz of plain arrays, got {error}; copy the file "
            "again or make it again"
        ) from error
    except (AttributeError, TypeError) as error:  # a bare .npy
        raise RunError(
            f"{path}: expected an .npz archive, got another file; check the path"
        ) from error


def digest_of(array: np.ndarray) -> str:
    """sha256 (hex) of an array's dtype, shape and bytes."""
    head = f"{array.dtype.str} {array.shape}\n".encode()
    return hashlib.sha256(head + np.ascontiguousarray(array).tobytes()).hexdigest()


def _array(landscape: Landscape, name: str) -> np.ndarray:
    array = landscape.loss if name == "losses" else getattr(landscape, name)
    return np.ascontiguousarray(array, ARRAYS[name][0])


def _check(path: Path, landscape: Landscape) -> None:
    """Sizes agree, and the harnesses are all of the space's."""
    families = landscape.families
    template, shots = families["template"], families["exemplars"]
    num = template.n * shots.num_outcomes
    items = len(landscape.header["items"])
    for name, expected in (
        ("template", (num,)),
        ("shots", (num, shots.k)),
        ("losses", (num, items)),
        ("reward", (num, items)),
        ("num_answer", (items,)),
        ("tokens", (num,)),
    ):
        found = _array(landscape, name).shape
        if found != expected:
            raise RunError(
                f"{path}: array {name}: expected shape {expected} for {template.n} "
                f"templates and {shots.k} of {shots.n} exemplars, got {found}; make "
                "the landscape again"
            )
    if template.n * shots.n**shots.k > _MOST_CELLS:
        raise RunError(
            f"{path}: a lookup table of {template.n * shots.n**shots.k} cells; use a "
            f"smaller pool or k (at most {_MOST_CELLS})"
        )
    if (landscape.index >= 0).sum() != num:
        raise RunError(f"{path}: some harnesses are missing; make the landscape again")
    if not np.isfinite(landscape.loss).all():
        raise RunError(f"{path}: losses are not all finite; make the landscape again")
