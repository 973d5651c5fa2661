"""Model directories that are damaged, incomplete or not what they say, through the command line. None of them runs code."""

import json
import os
import pickle
import shutil
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from erniecore.errors import Exit

UP = "model.layers.1.mlp.up_proj.weight"
EXPERT = "model.layers.1.mlp.experts.2.down_proj.weight"


@pytest.fixture
def model(home, tmp_path):
    """A copy of ``base`` to be damaged."""
    return shutil.copytree(home / "base", tmp_path / "model")


def weights(model):
    return model / "model.safetensors"


def raw(change):
    """Damage the bytes of the weights; the manifest would tell at once, so it goes: foreign models have none."""

    def damage(model):
        (model / "erniecore_manifest.json").unlink()
        data = bytearray(weights(model).read_bytes())
        weights(model).write_bytes(change(data) or data)

    return damage


def tensors(change):
    """Replace tensors by other valid ones."""

    def damage(model):
        (model / "erniecore_manifest.json").unlink()
        found = load_file(weights(model))
        change(found)
        save_file(found, weights(model), metadata={"format": "pt"})

    return damage


def config(**changes):
    """Change keys of config.json; ``None`` removes one."""

    def damage(model):
        content = json.loads((model / "config.json").read_text()) | changes
        (model / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return damage


def file(name, content):
    """Replace a file."""
    return lambda model: (model / name).write_bytes(content)


def header_length(data):
    data[:8] = struct.pack("<Q", 10**12)


def header_text(data):
    data[8:12] = b"\xff\xff\xff\xff"


def overlapping(data):
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header[UP]["data_offsets"] = header["model.norm.weight"]["data_offsets"]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def rename(found):
    found[UP.replace("up_proj", "upproj")] = found.pop(UP)


def spoil(found):
    found[UP][3, 5] = np.nan


def cut(found):
    found[UP] = found[UP][:-1].copy()


K = Exit.CHECKPOINT
FITS = "check that config.json belongs to these weights"
FETCH = "write or fetch the model directory again"
DAMAGED = {
    "header length": (raw(header_length), K, "model.safetensors", "at most 100 MB"),
    "header text": (raw(header_text), K, "model.safetensors", "the header is not JSON"),
    "overlap": (raw(overlapping), K, "model.safetensors", "offsets"),
    "end missing": (raw(lambda data: data[:-1000]), K, "model.safetensors", "the file is truncated"),
    "start only": (raw(lambda data: data[:4]), K, "model.safetensors", "at least 8 bytes"),
    "tensor missing": (tensors(lambda t: t.pop(UP)), K, f"{UP} is missing", FITS),
    "tensor too many": (tensors(lambda t: t.update(x=t[UP])), K, "x is unexpected", FITS),
    "other name": (tensors(rename), K, f"{UP} is missing", "(near: model.layers.1.mlp.upproj.weight)"),
    "other shape": (tensors(cut), K, f"{UP} has shape [63, 32]", "expected [64, 32]"),
    "integers": (tensors(lambda t: t.update({UP: t[UP].astype(np.int8)})), K, UP, "expect  float32"),
    "not a number": (tensors(spoil), Exit.NUMERICS, f"model.safetensors: {UP}", "use an earlier checkpoint"),
    "no weights": (lambda m: weights(m).unlink(), K, "this directory holds no weights", "name the directory"),
    "no rope base": (config(rope_theta=None, rope_parameters=None), K, "config.json: rope_theta", "it has no safe default"),
    "more layers": (config(num_hidden_layers=3), K, "model.layers.2.mlp.up_proj.weight is missing", FITS),
    "heads": (config(num_attention_heads=5), K, "config.json: num_key_value_heads", "does not divide"),
    "no number": (config(hidden_size="big"), K, "config.json: hidden_size", "a whole number, 1 or more"),
    "no type": (config(model_type=None), K, "config.json has no model_type", "add the key"),
    "other type": (config(model_type="ernie9"), Exit.USAGE, "'ernie9'", "ernie plugins --kind model"),
    "cut config": (file("config.json", b'{"model_type": "ernie4_5",'), K, "config.json", FETCH),
    "empty config": (file("config.json", b""), K, "config.json", FETCH),
    "list as config": (file("config.json", b"[1]"), K, "config.json", FETCH),
    "template": (file("chat_template.jinja", b"{{ m.content"), Exit.DATA, "chat template, line 1", "repair the template"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("command", ["generate", "run"])
def test_damaged_model_is_refused_with_the_part(refuses, runner, model, snapshot, command, case):
    damage, code, place, remedy = case
    damage(model)
    before = snapshot(model)
    words = {
        "generate": ["generate", "--model", model, "--prompt", "1 plus 1", "--max-new-tokens", 1],
        "run": ["run", *runner.words(model__path=model, train__max_steps=1)[1:]],
    }
    refuses(words[command], code, place, remedy=remedy)
    assert snapshot(model) == before
    assert not (runner.directory / "out" / "model").exists()


def test_tokenizer_with_more_ids_than_the_model_is_refused(refuses, runner, model):
    config(vocab_size=100)(model)
    refuses(generate(model), K, model, "320 ids", remedy="use the tokenizer that belongs to this model")
    words = ["run", *runner.words(model__path=model)]
    refuses(words, Exit.USAGE, "the tokenizer has 320 ids", remedy="the model only 100 (vocab_size)")


def test_directory_without_a_model_is_refused(refuses, runner, model):
    (model / "config.json").unlink()
    refuses(generate(model), Exit.USAGE, model, remedy="a directory with config.json")
    words = [*runner.words()[1:], "--model", model]
    refuses(
        ["run", *(w for w in words if not str(w).startswith("model.path"))], K, model, remedy="give a plugin name or a"
    )


def test_one_flipped_bit_is_found_by_the_manifest(refuses, model):
    data = bytearray(weights(model).read_bytes())
    data[-500] ^= 64
    weights(model).write_bytes(data)
    words = ["generate", "--model", model, "--prompt", "1", "--max-new-tokens", 1]
    refuses(words, Exit.CHECKPOINT, weights(model), "sha256 differs", remedy="fetch or write the model again")


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("name", ["model_state.pdparams", "pytorch_model.bin", "m.pt", "m.pkl", "model.safetensors"])
@pytest.mark.parametrize("command", ["generate", "run", "export", "eval"])
def test_pickle_is_never_opened(refuses, runner, model, tmp_path, name, command):
    weights(model).unlink()
    mark = tmp_path / "exploded"
    (model / name).write_bytes(pickle.dumps(Bomb(mark)))
    words = {
        "generate": ["generate", "--model", model, "--prompt", "1"],
        "run": ["run", *runner.words(model__path=model)],
        "export": ["export", model, "--to", "hf", "--out", tmp_path / "exported"],
        "eval": ["eval", "--model", model, "--data", runner.home / "eval.jsonl"],
    }[command]
    refuses(words, Exit.CHECKPOINT, model / name, "pickle", remedy="safetensors release")
    assert not mark.exists()
    assert not (tmp_path / "exported").exists()


@pytest.fixture
def sharded(model):
    """The weights as two shards with an index."""
    found = load_file(weights(model))
    weights(model).unlink()
    (model / "erniecore_manifest.json").unlink()
    names = sorted(found)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for part, members in parts.items():
        save_file({n: found[n] for n in members}, model / part)
    index = {"weight_map": {n: part for part, members in parts.items() for n in members}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return model


def generate(model):
    return ["generate", "--model", model, "--prompt", "1 plus 1", "--max-new-tokens", 1]


def test_shards_are_read(ernie, sharded):
    assert ernie(*generate(sharded)).code == 0


def test_missing_shard_is_named(refuses, sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    refuses(generate(sharded), Exit.CHECKPOINT, "1 of 2", "model-00002-of-00002.safetensors", remedy="copy or download")


def test_damaged_index_is_named(refuses, sharded):
    (sharded / "model.safetensors.index.json").write_text("{")
    refuses(generate(sharded), Exit.CHECKPOINT, "model.safetensors.index.json", remedy="`weight_map`")


def test_missing_expert_is_named(refuses, home, tmp_path):
    moe = shutil.copytree(home / "moe", tmp_path / "moe")
    tensors(lambda found: found.pop(EXPERT))(moe)
    refuses(generate(moe), Exit.CHECKPOINT, f"{EXPERT} is missing", remedy="config.json belongs to")


def test_evil_template_is_refused(refuses, model):
    (model / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    refuses(generate(model), Exit.DATA, "the chat template refuses it", remedy="__class__")


def test_foreign_directory_is_not_overwritten(refuses, home, tmp_path, snapshot):
    target = tmp_path / "mine"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    words = ["--tokenizer", home / "tok", "--out", target, "--size", "tiny"]
    before = snapshot(tmp_path)
    refuses(["model", "init", "--model", "ernie45", *words], Exit.CHECKPOINT, target, remedy="an empty directory")
    refuses(
        ["export", home / "base", "--to", "hf", "--out", target], Exit.CHECKPOINT, target, remedy="an empty directory"
    )
    assert snapshot(tmp_path) == before


def test_a_model_far_larger_than_its_weights_is_never_built(refuses, model):
    config(hidden_size=1 << 24)(model)
    refuses(
        generate(model), Exit.CHECKPOINT, "model.embed_tokens.weight", remedy="config.json belongs to these weights"
    )
