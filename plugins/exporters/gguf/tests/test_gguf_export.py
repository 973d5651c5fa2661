"""GGUF files read back: names, shapes, keys and values against the source, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from erniecore_checkpoint.directories import verify_directory
from erniecore_checkpoint.floats import read_tensors, write_tensors
from erniecore_export.exporting import export_bundle, export_directory
from erniecore_export.stored import open_stored
from erniecore_gguf.architecture import check_architecture, first_expert_layer
from erniecore_gguf.types import type_of
from erniecore_model_init.new_model import init_model
from gguf.quants import dequantize

from erniecore.engine.models.bundles import load_bundle
from erniecore.engine.models.located import locate
from erniecore.errors import CheckpointError, NumericsError, UsageError

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
COMMON = "hidden_size=64,intermediate_size=96,num_attention_heads=4,num_key_value_heads=2"
SIZES = {
    "ernie45": f"{COMMON},head_dim=32,num_hidden_layers=2,vocab_size=400",
    "ernie45-moe": f"{COMMON},num_hidden_layers=3,moe_num_experts=4,moe_k=2,moe_intermediate_size=32,"
    "moe_num_shared_experts=1,moe_layer_start_index=1,tie_word_embeddings=false",
}
#: largest step between two neighboring values, as a share of the largest magnitude of its block
STEP = {"F32": 0.0, "F16": 2**-10, "BF16": 2**-7, "Q8_0": 1 / 127, "Q4_0": 1 / 8}
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A tokenizer, and a model of each architecture with random weights."""
    from erniecore_text.training import train

    home = tmp_path_factory.mktemp("gguf")
    (home / "tok").mkdir()
    train([f"{a} plus {b} is {a + b}, 你好" for a in range(31) for b in range(31)], 310).save(home / "tok")
    for name, size in SIZES.items():
        init_model(name, size, home / "tok", home / name, seed_value=1)
    return home


def read(directory):
    """The one GGUF file of a directory: (keys, tensors by name)."""
    (path,) = directory.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    return {key: field.contents() for key, field in reader.fields.items()}, {t.name: t for t in reader.tensors}


def expected_tensors(tensors):
    """llama.cpp's name -> values, of public tensors."""
    spelled = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
               "self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm",
               "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
               "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp"}  # fmt: skip
    shared = {f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    fixed["lm_head.weight"] = "output.weight"
    out, experts = {}, {}
    for name, value in tensors.items():
        if name in fixed:
            out[fixed[name]] = value
            continue
        _, _, layer, inner = name.split(".", 3)
        if ".experts." in name:
            number, part = int(inner.split(".")[2]), inner.split(".")[3].removesuffix("_proj")
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[number] = value
        elif "e_score_correction" in name:
            out[f"blk.{layer}.exp_probs_b.bias"] = value.reshape(-1)
        else:
            out[f"blk.{layer}.{ {**spelled, **shared}[inner.removesuffix('.weight')] }.weight"] = value
    out.update({name: np.stack([parts[i] for i in range(len(parts))]) for name, parts in experts.items()})
    return out


def expected_type(name, value, wanted, tied):
    if value.ndim < 2 or "norm" in name or "gate_inp" in name:
        return "F32"
    if wanted == "Q4_0" and name == ("token_embd.weight" if tied else "output.weight"):
        return "Q8_0"
    return wanted


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", SIZES)
def test_every_tensor_has_its_name_shape_type_and_values(home, tmp_path, name, dtype):
    export_directory(home / name, tmp_path / "out", "gguf", {"dtype": dtype})
    expected = expected_tensors(dict(read_tensors(home / name / "model.safetensors")))
    keys, found = read(tmp_path / "out")
    assert set(found) == set(expected)
    for tensor, value in expected.items():
        entry = found[tensor]
        kind = entry.tensor_type.name
        assert entry.shape.tolist() == list(value.shape[::-1]), tensor
        assert kind == expected_type(tensor, value, TYPES[dtype], name == "ernie45"), tensor
        got = dequantize(entry.data, entry.tensor_type).reshape(value.shape)
        if kind == "F32":
            assert got.tobytes() == value.tobytes(), tensor
            continue
        blocks = value.reshape(-1, 32) if kind.startswith("Q") else value.reshape(-1, 1)
        bound = np.abs(blocks).max(axis=1, keepdims=True) * STEP[kind] * 0.57 + 1e-7  # the scale is float16, too
        if kind == "Q4_0":  # its largest value has one sign only: the other side is cut at 7/8
            bound *= 2
        assert (np.abs(got.reshape(blocks.shape) - blocks) <= bound).all(), tensor
    assert keys["general.file_type"] == {"F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2}[TYPES[dtype]]
    assert verify_directory(tmp_path / "out") == []


def test_keys_of_a_dense_model(home, tmp_path):
    export_directory(home / "ernie45", tmp_path / "out", "gguf")
    keys, _ = read(tmp_path / "out")
    config = json.loads((home / "ernie45" / "config.json").read_text())
    assert keys["general.architecture"] == "ernie4_5"
    sizes = {key.removeprefix("ernie4_5."): keys[key] for key in keys if key.startswith("ernie4_5.")}
    assert sizes == {
        "vocab_size": 400,
        "context_length": config["max_position_embeddings"],
        "embedding_length": 64,
        "block_count": 2,
        "feed_forward_length": 96,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.layer_norm_rms_epsilon": pytest.approx(config["rms_norm_eps"]),
        "rope.dimension_count": 32,
        "rope.freq_base": config["rope_theta"],
    }


def test_keys_of_experts(home, tmp_path):
    export_directory(home / "ernie45-moe", tmp_path / "out", "gguf")
    keys, _ = read(tmp_path / "out")
    assert keys["general.architecture"] == "ernie4_5-moe"
    found = {key: keys[f"ernie4_5-moe.{key}"] for key in ("expert_count", "expert_used_count", "expert_shared_count",
             "expert_feed_forward_length", "expert_shared_feed_forward_length", "leading_dense_block_count",
             "interleave_moe_layer_step")}  # fmt: skip
    assert list(found.values()) == [4, 2, 1, 32, 32, 1, 1]


def test_the_tokenizer_is_in_the_file(home, tmp_path):
    export_directory(home / "ernie45", tmp_path / "out", "gguf")
    keys, _ = read(tmp_path / "out")
    tokenizer = load_bundle(home / "ernie45").bundle.tokenizer
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert (keys["tokenizer.ggml.model"], len(tokens), len(keys["tokenizer.ggml.scores"])) == ("llama", 400, 400)
    for text, token in tokenizer.special_tokens.items():
        assert tokens[token] == text
        assert types[token] == (gguf.TokenType.UNKNOWN if text == "<unk>" else gguf.TokenType.CONTROL)
    assert types.count(gguf.TokenType.BYTE) == 256
    assert tokens[types.index(gguf.TokenType.BYTE)] == "<0x00>"
    assert set(types[tokenizer.vocab_size :]) == {gguf.TokenType.UNUSED}
    ids = {role: keys[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos", "padding", "unknown", "eot")}
    assert ids == {
        "bos": 1,
        "eos": 2,
        "padding": 0,
        "unknown": 0,
        "eot": tokenizer.special_tokens["<|end_of_sentence|>"],
    }
    flags = [keys[f"tokenizer.ggml.add_{flag}"] for flag in ("bos_token", "eos_token", "space_prefix")]
    assert flags == [False, False, False]
    assert keys["tokenizer.chat_template"] == (home / "ernie45" / "chat_template.jinja").read_text()


def paddle_layout(tensors):
    """The same dense weights as a '-Paddle' checkpoint has them."""
    out = {}
    for name, value in tensors.items():
        module = name.replace("model.", "ernie.", 1).removesuffix(".weight")
        if module.endswith(("q_proj", "gate_proj")):
            parts = ("q_proj", "k_proj", "v_proj") if module.endswith("q_proj") else ("gate_proj", "up_proj")
            fused = "qkv_proj" if len(parts) == 3 else "up_gate_proj"
            above = name.removesuffix(f"{parts[0]}.weight")
            joined = np.concatenate([tensors[f"{above}{part}.weight"].T for part in parts], axis=1)
            out[f"{module.rpartition('.')[0]}.{fused}.weight"] = np.ascontiguousarray(joined)
        elif not module.endswith(("k_proj", "v_proj", "up_proj")):
            turned = value.ndim == 2 and "embed" not in name
            out[f"{module}.weight"] = np.ascontiguousarray(value.T) if turned else value
    return out


def test_the_paddle_layout_and_a_model_in_memory_give_the_same_file(home, tmp_path):
    shutil.copytree(home / "ernie45", tmp_path / "paddle")
    (tmp_path / "paddle" / "model.safetensors").unlink()
    manifest = json.loads((tmp_path / "paddle" / "erniecore_manifest.json").read_text())
    del manifest["files"]["model.safetensors"]
    (tmp_path / "paddle" / "erniecore_manifest.json").write_text(json.dumps(manifest))
    tensors = dict(read_tensors(home / "ernie45" / "model.safetensors"))
    write_tensors(tmp_path / "paddle" / "model.safetensors", paddle_layout(tensors))
    for out, source in (("a", home / "ernie45"), ("b", tmp_path / "paddle")):
        export_directory(source, tmp_path / out, "gguf", {"dtype": "q8_0"})
    export_bundle(load_bundle(home / "ernie45").bundle, tmp_path / "c", "gguf", {"dtype": "q8_0"})
    files = [(tmp_path / out / "model-Q8_0.gguf").read_bytes() for out in "abc"]
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("built", [False, True])
def test_layers_of_prediction_are_left_out_with_a_note(tmp_path, built):
    if built:
        export_bundle(
            load_bundle(FIXTURES / "moe_mtp", mtp=True).bundle, tmp_path / "out", "gguf", {"dtype": "float32"}
        )
        notes = json.loads((tmp_path / "out" / "erniecore_manifest.json").read_text())["provenance"]["notes"]
    else:
        notes = export_directory(FIXTURES / "moe_mtp", tmp_path / "out", "gguf").notes
    assert any("model.mtp_" in note for note in notes)
    found = read(tmp_path / "out")[1]
    assert "blk.1.ffn_up_exps.weight" in found
    assert not [name for name in found if "mtp" in name or "nextn" in name]


def test_a_value_beyond_float16_is_refused_and_nothing_is_left(home, tmp_path):
    shutil.copytree(home / "ernie45", tmp_path / "big")
    (tmp_path / "big" / "erniecore_manifest.json").unlink()
    tensors = dict(read_tensors(home / "ernie45" / "model.safetensors"))
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = 7e4
    (tmp_path / "big" / "model.safetensors").unlink()
    write_tensors(tmp_path / "big" / "model.safetensors", tensors)
    with pytest.raises(NumericsError, match=r"not finite in float16.*bfloat16") as caught:
        export_directory(tmp_path / "big", tmp_path / "out", "gguf", {"dtype": "float16"})
    assert caught.value.where == "model.layers.1.mlp.up_proj.weight"
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
    export_directory(tmp_path / "big", tmp_path / "out", "gguf", {"dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"model_type": "ernie4_5_vl_moe"}, "model_type"),
        ({"use_bias": True}, "use_bias"),
        ({"scoring_func": "sigmoid"}, "scoring_func"),
        ({"moe_layer_interval": 2}, "moe_layer_interval"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused_by_name(change, where):
    check_architecture({"model_type": "ernie4_5_moe", "use_bias": False, "moe_layer_interval": 1})
    with pytest.raises(UsageError) as caught:
        check_architecture({"model_type": "ernie4_5_moe", **change})
    assert where in caught.value.where
    assert str(change[where]) in caught.value.found


def test_layers_without_experts_must_come_first():
    names = [f"model.layers.{layer}.mlp.experts.0.up_proj.weight" for layer in (1, 2)]
    assert first_expert_layer(names, 3) == 1
    with pytest.raises(UsageError, match="experts in every layer"):
        first_expert_layer(names, 4)


def test_a_matrix_with_narrow_rows_is_float16():
    wanted = gguf.GGMLQuantizationType.Q8_0
    assert type_of("blk.0.ffn_down.weight", (64, 48), wanted, tied=True) is gguf.GGMLQuantizationType.F16
    assert type_of("blk.0.ffn_up.weight", (48, 64), wanted, tied=True) is wanted


def test_quantized_weights_are_refused(home, tmp_path):
    from erniecore_quantize.quantize import quantize_directory

    quantize_directory(home / "ernie45", tmp_path / "packed", "wint8")
    with pytest.raises(UsageError, match="the weights of this model are quantized"):
        export_directory(tmp_path / "packed", tmp_path / "out", "gguf")


def test_memory_is_that_of_a_block_and_not_of_the_model(home, tmp_path, monkeypatch):
    init_model("ernie45", f"{SIZES['ernie45'].replace('=400', '=40000')}", home / "tok", tmp_path / "wide")
    monkeypatch.setattr("erniecore_gguf.export._BLOCK", 1 << 14)
    monkeypatch.setattr("erniecore_gguf.export.add_tokenizer", lambda *_: [])  # its lists are as long as the vocabulary
    opened = open_stored(locate(tmp_path / "wide"))
    tracemalloc.start()
    export_bundle(opened.bundle, tmp_path / "out", "gguf", {"dtype": "q8_0"})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    stored = (tmp_path / "wide" / "model.safetensors").stat().st_size
    assert stored > 10_000_000
    assert peak < stored / 5


def test_a_disk_that_is_full_is_named_and_nothing_is_left(home, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("erniecore_gguf.export._write_data", full)
    with pytest.raises(CheckpointError, match="no space left on the disk"):
        export_directory(home / "ernie45", tmp_path / "out", "gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["_write", "_write_data", "_notes", "write_directory_manifest"])
def test_a_killed_export_leaves_the_source_and_no_model_and_its_repetition_is_whole(home, tmp_path, place):
    """Killed before the header, in the data, behind it, and with all but the manifest on the disk."""
    source, out, whole = home / "ernie45-moe", tmp_path / "out", tmp_path / "whole"
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    child = os.fork()
    if not child:
        try:
            die_in(place, calls=5 if place == "_write_data" else 1)
            export_directory(source, out, "gguf", {"dtype": "q8_0"})
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".tmp-out-")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    for directory in (out, whole):
        export_directory(source, directory, "gguf", {"dtype": "q8_0"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {p.name: p.read_bytes() for p in whole.iterdir()}


def die_in(name, calls):
    """This process kills itself when it calls a function of the exporter for the last of so many times."""
    from erniecore_gguf import export

    function, left = getattr(export, name), iter(range(calls, 0, -1))

    def die(*arguments, **named):
        if next(left) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)

    setattr(export, name, die)
