"""Checkpoints of a run: the whole state, written by Orbax in the background.

One checkpoint holds every array of the loop (phi, theta, optimisers, estimators with
their windows, the last good state), and what the host counts (place in the schedule,
size of the metrics, budget, trust in the gate). What Orbax had not written whole when a
run was killed does not count as a checkpoint. A digest over all of it,
taken before the arrays are donated to the next update, is checked when they are read.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from metaharness.errors import RunError
from metaharness.train.stage_config import CheckpointConfig

Arrays = dict[str, np.ndarray]


class Restored(NamedTuple):
    """tree: of the given structure; host: what was saved beside it; notes: what had to
    be passed over, in words."""

    tree: Any
    host: dict[str, Any]
    notes: tuple[str, ...]


class Checkpoints:
    """The checkpoints of one run directory. A context manager: leaving it waits until
    what was saved is on disk."""

    def __init__(self, folder: Path, config: CheckpointConfig | None = None) -> None:
        self._folder = Path(folder).absolute()
        config = config or CheckpointConfig()
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax narrates
        self._manager = ocp.CheckpointManager(
            self._folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=config.keep,
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,
            ),
        )

    def save(self, step: int, tree: Any, host: Mapping[str, Any]) -> None:
        """Save a pytree of arrays and typed keys, and plain JSON beside it.

        Returns when the arrays have been copied; they may be donated afterwards.
        """
        arrays = _to_arrays(tree)
        beside = {
            "digest": _digest(arrays, host),
            "names": sorted(arrays),
            "names_digest": _names_digest(sorted(arrays)),
            "host": host,
        }
        self._manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(arrays),
                beside=ocp.args.JsonSave(beside),
            ),
        )

    def steps(self) -> list[int]:
        """Updates that have a checkpoint, oldest first."""
        return sorted(self._manager.all_steps())

    def restore(self, like: Any) -> Restored | None:
        """The newest whole checkpoint as a tree of ``like``'s structure, or None.

        A damaged one is set aside, with a note, and the one before is read.

        Raises:
            RunError: there are checkpoints, and all of them are damaged; or one is
                whole but of another structure: it stays where it is.
        """
        notes = []
        for step in reversed(self.steps()):
            try:
                found = self._read(step, like)
            except RunError:
                raise
            except Exception as error:  # whatever a broken file makes Orbax raise
                reason = " ".join(str(error).split())[:120] or type(error).__name__
                notes.append(
                    f"the checkpoint of update {step} is damaged ({reason}); it was "
                    "set aside and the one before is used"
                )
                self._set_aside(step)
                continue
            return Restored(*found, tuple(notes))
        if notes:
            raise RunError(
                f"{self._folder}: expected a whole checkpoint, found only damaged ones "
                f"({notes[0]}); start a new run"
            )
        return None

    def wait(self) -> None:
        """Until everything saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _read(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        beside = self._manager.restore(
            step, args=ocp.args.Composite(beside=ocp.args.JsonRestore())
        )["beside"]
        wanted = _to_arrays(like)
        if _names_digest(beside["names"]) != beside["names_digest"]:
            raise ValueError("its names do not have the digest they were saved with")
        if sorted(wanted) != beside["names"]:
            odd = sorted(set(wanted) ^ set(beside["names"]))
            raise RunError(
                f"{self._folder}: expected checkpoints of this version, got one whose "
                f"arrays {', '.join(odd[:3])} are missing or too many; resume with the "
                "version that wrote it, or start a new run"
            )
        arrays = self._manager.restore(
            step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(wanted))
        )["arrays"]
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
        if _digest(arrays, beside["host"]) != beside["digest"]:
            raise ValueError("it does not have the digest that it was saved with")
        return _to_tree(arrays, like), beside["host"]

    def _set_aside(self, step: int) -> None:
        aside = self._folder.with_name(f"{self._folder.name}-damaged")
        aside.mkdir(exist_ok=True)
        target = aside / str(step)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(self._folder / str(step), target)
        self._manager.reload()


def _named(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in leaves
    ]


def _to_arrays(tree: Any) -> Arrays:
    """Name -> a host copy; keys as their data, empty arrays left out."""
    out = {}
    for name, leaf in _named(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if leaf.size:
            out[name] = np.array(leaf, copy=True)
    return out


def _to_tree(arrays: Arrays, like: Any) -> Any:
    leaves = []
    for name, leaf in _named(like):
        if not leaf.size:
            leaves.append(leaf)
            continue
        array = jnp.asarray(arrays[name])
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            array = jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf))
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError(
                f"array {name} is {array.dtype} {array.shape}, expected {leaf.dtype} "
                f"{leaf.shape}"
            )
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _names_digest(names: list[str]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()


def _digest(arrays: Arrays, host: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(host, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
