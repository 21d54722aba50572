"""Hugging Face folders: what is read, what is refused, and every tensor accounted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from metaharness.errors import WeightsError
from metaharness.model.assemble import assemble, stored
from metaharness.model.safetensors import read_config, read_safetensors, weight_files

DATA = Path(__file__).parents[1] / "data" / "model"
GATE = "model.layers.1.mlp.gate_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the tiny untied Qwen2 checkpoint (float16, one file)."""
    shutil.copytree(DATA / "tiny_qwen2_untied", tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder: Path, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_weights(folder: Path, change: Callable[[dict], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.pop(GATE), rf"missing {GATE} \[36, 24\];"),
        (
            lambda t: t.update({GATE: np.zeros((36, 23), np.float16)}),
            rf"{GATE}: expected shape \[36, 24\], got \[36, 23\]",
        ),
        (
            lambda t: t.update({GATE: np.ascontiguousarray(t[GATE].T)}),
            rf"{GATE}: expected shape \[36, 24\], got \[24, 36\]",
        ),
        (
            lambda t: t.update({"model.layers.2.mlp.up_proj.weight": t[GATE].copy()}),
            r"unknown model\.layers\.2\.mlp\.up_proj\.weight \[36, 24\]",
        ),
        (
            lambda t: t.update({"score.bias": np.zeros(2, np.float16)}),
            r"unknown score\.bias \[2\]",
        ),
    ],
)
def test_each_tensor_is_used_or_named(
    folder: Path, change: Callable[[dict], object], message: str
) -> None:
    edit_weights(folder, change)
    config, tensors = read_safetensors(folder)
    with pytest.raises(WeightsError, match=message) as caught:
        assemble(config, tensors)
    assert "\n" not in str(caught.value)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    with pytest.raises(WeightsError, match=r"missing .* and 8 more"):
        assemble(*read_safetensors(folder))


def test_rotary_buffers_are_ignored(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(folder, lambda t: t.update({name: np.ones(3, np.float16)}))
    assemble(*read_safetensors(folder))


def test_every_array_comes_from_its_own_tensor(folder: Path) -> None:
    """Each tensor filled with its own number arrives in one place of the decoder."""
    config, tensors = read_safetensors(folder)
    marked = {
        name: stored(np.full(tensor.shape, index, np.float32))
        for index, (name, tensor) in enumerate(sorted(tensors.items()))
    }
    decoder = assemble(config, marked)
    named = decoder.to_arrays()
    arrays = [a[i] for n, a in named.items() if n.startswith("layers") for i in (0, 1)]
    arrays += [a for n, a in named.items() if not n.startswith("layers")]
    values = [np.unique(array).tolist() for array in arrays]
    assert sorted(values) == [[float(index)] for index in range(len(tensors))]


def test_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(WeightsError, match="expected one of float32, bfloat16"):
        assemble(*read_safetensors(folder), "float16")


def test_a_tied_model_may_repeat_its_embedding_but_not_differ(tmp_path: Path) -> None:
    shutil.copytree(DATA / "tiny_qwen2_tied", tmp_path / "m")

    def repeat(tensors: dict) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()

    edit_weights(tmp_path / "m", repeat)
    assert assemble(*read_safetensors(tmp_path / "m")).lm_head is None

    def differ(tensors: dict) -> None:
        tensors["lm_head.weight"][3, 5] += 1

    edit_weights(tmp_path / "m", differ)
    with pytest.raises(WeightsError, match="set tie_word_embeddings to false"):
        read_safetensors(tmp_path / "m")


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(model_type="mistral"), "'mistral'"),
        (dict(model_type="qwen2_moe"), "'qwen2_moe'"),
        (dict(hidden_act="gelu"), "hidden_act = silu, got gelu"),
        (dict(quantization_config={"bits": 4}), "quantization_config"),
        (
            dict(
                rope_parameters={
                    "rope_type": "linear",
                    "rope_theta": 1e4,
                    "factor": 2.0,
                }
            ),
            "rope_type = default, got linear",
        ),
        (
            dict(rope_parameters=None, rope_scaling={"type": "yarn", "factor": 4.0}),
            "rope_type = default, got yarn",
        ),
        (
            dict(
                use_sliding_window=True,
                sliding_window=64,
                max_window_layers=1,
                layer_types=None,
            ),
            "got sliding_attention",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    folder: Path, fields: dict, named: str
) -> None:
    edit_config(folder, **fields)
    with pytest.raises(WeightsError, match=named) as caught:
        read_safetensors(folder)
    assert "\n" not in str(caught.value)


def test_llama_biases_are_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "tiny_llama_tied", tmp_path / "m")
    for field in ("attention_bias", "mlp_bias"):
        edit_config(tmp_path / "m", **{field: True})
        with pytest.raises(WeightsError, match=f"{field} = False, got True"):
            read_config(tmp_path / "m")
        edit_config(tmp_path / "m", **{field: False})
    read_config(tmp_path / "m")


def test_inactive_sliding_window_and_old_rope_fields_are_read(folder: Path) -> None:
    """Published Qwen2.5 files state a window that is off, and rope_theta at the top."""
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    for key in ("rope_parameters", "layer_types"):
        del fields[key]
    fields |= dict(rope_theta=1e6, sliding_window=32768, use_sliding_window=False)
    path.write_text(json.dumps(fields))
    assert read_config(folder).rope_theta == 1e6


def test_pickles_are_refused_by_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"only pytorch_model\.bin, a pickle"):
        read_safetensors(folder)


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(WeightsError, match="expected a safetensors file"):
        read_safetensors(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json: expected a JSON file"):
        read_safetensors(folder)
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"config\.json: expected a JSON file"):
        read_safetensors(folder)


def test_other_stored_dtypes_are_refused(folder: Path) -> None:
    edit_weights(folder, lambda t: t.update({GATE: np.zeros((36, 24), np.int8)}))
    with pytest.raises(WeightsError, match=f"{GATE}: expected F32, F16, BF16, got I8"):
        read_safetensors(folder)


def test_shards_are_checked_against_their_index(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(DATA / "tiny_llama_untied", folder)
    first, second = weight_files(folder)
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())

    shutil.copy(first, tmp_path / "outside.safetensors")
    for shard in ("../outside.safetensors", "model-00009-of-00002.safetensors"):
        wrong = {"weight_map": table["weight_map"] | {"lm_head.weight": shard}}
        index.write_text(json.dumps(wrong))
        with pytest.raises(WeightsError, match=f"expected shard '{shard}'"):
            read_safetensors(folder)

    index.write_text(json.dumps(table))
    kept = load_file(second)
    dropped = sorted(kept)[0]
    del kept[dropped]
    save_file(kept, second)
    with pytest.raises(WeightsError, match=dropped):
        read_safetensors(folder)
    first.unlink()
    with pytest.raises(WeightsError, match=f"expected shard '{first.name}'"):
        read_safetensors(folder)
