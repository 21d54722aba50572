"""A checkpoint comes back as it was saved, or not at all."""

import shutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaharness.errors import RunError
from metaharness.train.checkpoint import Checkpoints
from metaharness.train.stage_config import CheckpointConfig

# Orbax leaves a closed event loop behind where a file is broken.
BROKEN = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Pair(NamedTuple):
    a: jax.Array
    b: jax.Array | None


def tree_of(seed):
    rng = np.random.default_rng(seed)
    return {
        "pair": Pair(jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), None),
        "root": jax.random.key(seed),
        "keys": jax.random.split(jax.random.key(seed + 1), 3),
        "empty": jnp.zeros((0, 5)),
        "flags": jnp.asarray(rng.random(7) < 0.5),
        "step": jnp.int32(seed),
        "odd": (jnp.float32(-0.0), jnp.array([jnp.nan, jnp.inf, 1e-45])),
        "half": jnp.asarray(rng.normal(size=5), jnp.bfloat16),
    }


def bits(tree):
    """Every leaf as (dtype, shape, bytes)."""

    def plain(x):
        name = str(x.dtype)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        return name, x.shape, np.asarray(x).tobytes()

    return jax.tree.map(plain, tree)


def save(folder, *steps, keep=3):
    with Checkpoints(folder, CheckpointConfig(keep=keep)) as checkpoints:
        for step in steps:
            checkpoints.save(step, tree_of(step), {"at": step, "list": [0.1, None]})


def restore(folder):
    with Checkpoints(folder) as checkpoints:
        return checkpoints.restore(tree_of(0))


def test_a_tree_comes_back_to_the_bit(tmp_path):
    save(tmp_path / "saved", 7)
    found = restore(tmp_path / "saved")
    assert bits(found.tree) == bits(tree_of(7)) and found.notes == ()
    assert found.host == {"at": 7, "list": [0.1, None]}
    assert isinstance(found.tree["pair"], Pair)
    draw = jax.random.normal(found.tree["root"], (2,))
    np.testing.assert_array_equal(draw, jax.random.normal(jax.random.key(7), (2,)))


def test_doubles_come_back(tmp_path):
    with jax.enable_x64(True):
        tree = {"x": jnp.asarray(np.random.default_rng(0).normal(size=4))}
        tree["n"] = jnp.asarray(2**40)
        with Checkpoints(tmp_path / "saved") as checkpoints:
            checkpoints.save(1, tree, {})
            found = checkpoints.restore(jax.tree.map(jnp.zeros_like, tree))
        assert found.tree["x"].dtype == jnp.float64
        assert bits(found.tree) == bits(tree)


def test_only_the_newest_are_kept(tmp_path):
    save(tmp_path / "saved", 1, 4, 6, keep=2)
    with Checkpoints(tmp_path / "saved") as checkpoints:
        assert checkpoints.steps() == [4, 6]
    assert bits(restore(tmp_path / "saved").tree) == bits(tree_of(6))


def test_without_checkpoints_there_is_nothing(tmp_path):
    assert restore(tmp_path / "saved") is None


def test_what_is_saved_is_a_copy(tmp_path):
    """The caller's arrays may change, or go to the next update, at once."""
    host = np.arange(1e5, dtype=np.float32)
    given = jnp.arange(1e5, dtype=jnp.float32)
    reuse = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    with Checkpoints(tmp_path / "saved") as checkpoints:
        checkpoints.save(1, {"host": host, "given": given}, {})
        host[:] = -1
        reuse(given).block_until_ready()
        assert given.is_deleted()
        like = {"host": host, "given": jnp.zeros_like(host)}
        checkpoints.wait()
        found = checkpoints.restore(like).tree
    for array in found.values():
        np.testing.assert_array_equal(array, np.arange(1e5))


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def deleted(path):
    path.unlink()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "saved"
    save(folder, 2, 5)
    return folder


@BROKEN
@pytest.mark.parametrize("damage", [truncated, flipped, deleted])
def test_no_damage_to_any_file_passes_unseen(saved, tmp_path, damage):
    """The newest comes back whole, or the one before it with a note."""
    files = sorted(path for path in (saved / "5").rglob("*") if path.is_file())
    stored = [path for path in files if "/d/" in str(path)]
    assert len(stored) >= 2
    fell_back = set()
    for number, path in enumerate(files):
        folder = tmp_path / str(number) / "saved"
        shutil.copytree(saved, folder)
        damage(folder / path.relative_to(saved))
        found = restore(folder)
        step = found.host["at"]
        assert step in (2, 5) and bits(found.tree) == bits(tree_of(step)), path
        assert found.host == {"at": step, "list": [0.1, None]}
        if step == 2:
            fell_back.add(path)
            (note,) = found.notes
            assert note.startswith("the checkpoint of update 5 is damaged")
            assert not (folder / "5").exists()
            assert (folder.with_name("saved-damaged") / "5").is_dir()
        else:
            assert found.notes == ()
    assert fell_back & set(stored), "data files matter"


def test_arrays_of_another_checkpoint_are_not_taken_for_its_own(saved, tmp_path):
    """They are whole and of the right shapes: only the digest tells."""
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    shutil.rmtree(folder / "5" / "arrays")
    shutil.copytree(folder / "2" / "arrays", folder / "5" / "arrays")
    found = restore(folder)
    assert found.host["at"] == 2 and "digest" in found.notes[0]


def test_what_the_host_counted_is_checked_too(saved, tmp_path):
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    path = folder / "5" / "beside" / "metadata"
    text = path.read_text()
    assert text.count('"at": 5') == 1
    path.write_text(text.replace('"at": 5', '"at": 4'))
    found = restore(folder)
    assert found.host["at"] == 2 and "digest" in found.notes[0]


def test_nothing_but_damaged_ones_is_an_error(saved, tmp_path):
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    for step in ("2", "5"):
        deleted(folder / step / "beside" / "metadata")
    with pytest.raises(RunError, match="expected a whole checkpoint, found only"):
        restore(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"more": jnp.ones(2)}, "more"),
        ({"step": None}, "step"),
        ({"flags": jnp.zeros(8, bool)}, "flags"),
        ({"step": jnp.float32(0)}, "digest"),  # Orbax casts it unasked
    ],
)
def test_another_structure_is_refused(saved, tmp_path, change, named):
    folder = tmp_path / "saved"
    shutil.copytree(saved, folder)
    with Checkpoints(folder) as checkpoints:
        with pytest.raises(RunError, match=named):
            checkpoints.restore(tree_of(0) | change)
    # what is whole stays, for the version that wrote it
    assert named not in ("more", "step") or (folder / "5").is_dir()
