"""Models of any size: shards that are written while their values are made, with the values that a run makes in memory."""

import errno
import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from erniecore_model_init.new_model import init_model
from erniecore_text.training import train

from erniecore.api import CheckpointError, UsageError, building
from erniecore.engine.models.bundles import load_bundle
from erniecore.engine.models.filling import fill
from erniecore.engine.models.random_weights import attach_random
from erniecore.engine.models.weights import open_weights, state_of

SMALL = {
    "ernie45": "hidden_size=16,num_hidden_layers=2,tie_word_embeddings=false,use_bias=true",
    "ernie45-moe": "hidden_size=16,num_hidden_layers=2,num_nextn_predict_layers=1",
    "ernie45-vl": "hidden_size=32,num_hidden_layers=2",
}
#: 20 MB in float32, 12 of them the embedding
LARGE = "hidden_size=192,intermediate_size=512,num_hidden_layers=4,vocab_size=16000"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(directory)
    return directory


@pytest.fixture(scope="module")
def large(tmp_path_factory, tokenizer):
    return init_model("ernie45", LARGE, tokenizer, tmp_path_factory.mktemp("large") / "m", shard_size="5MB").path


def tensors(directory):
    return {name: (tensor.dtype, tensor.load()) for name, (_, tensor) in open_weights(directory).items()}


@pytest.mark.parametrize("model", SMALL)
def test_the_disk_holds_what_a_model_in_memory_has(tmp_path, tokenizer, model):
    plugin = building.model_plugin(model)
    made = init_model(model, SMALL[model], tokenizer, tmp_path / "m", seed_value=7)
    memory, _ = building.build_bundle(plugin, {"architecture": made.architecture}, None, "float32")
    attach_random(memory.model, memory.adapter, 7)
    fill(memory.model)
    ours, read = state_of(memory.model), state_of(load_bundle(made.path).bundle.model)
    assert all(np.array_equal(read[name].numpy(), ours[name].numpy()) for name in read)
    spread = [float(t.numpy().std()) for n, t in ours.items() if n.endswith("q_proj.weight")]
    assert spread == pytest.approx([made.architecture["initializer_range"]] * len(spread), rel=0.15)


def test_shards_and_dtypes_change_files_and_not_values(tmp_path, tokenizer):
    size, one = SMALL["ernie45-moe"], tmp_path / "one"
    init_model("ernie45-moe", size, tokenizer, one)
    cut = init_model("ernie45-moe", size, tokenizer, tmp_path / "cut", shard_size="40KB").path
    low = init_model("ernie45-moe", size, tokenizer, tmp_path / "low", dtype="bfloat16").path
    whole, shards, rounded = tensors(one), tensors(cut), tensors(low)
    files = set(json.loads((cut / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(files) > 2
    assert not (cut / "model.safetensors").exists()
    assert all(np.array_equal(whole[name][1], shards[name][1]) for name in whole)
    assert {d for n, (d, _) in rounded.items() if ".gate.weight" in n or "moe_statics" in n} == {"F32"}
    assert {d for n, (d, _) in rounded.items() if not (".gate.weight" in n or "moe_statics" in n)} == {"BF16"}
    name = "model.embed_tokens.weight"
    exact = (rounded[name][1].astype(np.uint32) << 16).view(np.float32)
    assert np.abs(exact - whole[name][1]).max() <= np.abs(whole[name][1]).max() / 256
    assert json.loads((low / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_memory_is_that_of_the_largest_tensors(tmp_path, tokenizer, large):
    """20 MB of weights, of which the embedding has 12; a whole model in memory would be those 20 and copies of them."""
    size = LARGE.replace("num_hidden_layers=4", "num_hidden_layers=40")  # 85 MB
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    made = init_model("ernie45", size, tokenizer, tmp_path / "m", shard_size="20MB")
    weights = sum(path.stat().st_size for path in made.path.glob("*.safetensors"))
    assert weights > 60e6
    assert status("VmHWM") - before < weights / 3


def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def test_a_killed_init_leaves_nothing_that_looks_finished(tmp_path, tokenizer, large):
    out = tmp_path / "m"
    child = os.fork()
    if not child:
        try:
            init_model("ernie45", LARGE, tokenizer, out, shard_size="5MB")
        finally:
            os._exit(1)
    while not list(tmp_path.glob(".tmp-m-*/model-00001*")) and not out.exists():
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not out.exists()
    init_model("ernie45", LARGE, tokenizer, out, shard_size="5MB")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    for path in large.glob("*.safetensors"):
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, tokenizer, monkeypatch):
    out, written, write = tmp_path / "m", [0], os.write
    init_model("ernie45", SMALL["ernie45"], tokenizer, out)
    before = {path: path.read_bytes() for path in out.iterdir()}

    def full(fd, data):
        written[0] += len(data)
        if written[0] > 1_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match="no space left on the disk while writing"):
        init_model("ernie45", LARGE, tokenizer, out)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_vocabulary_larger_than_the_tokenizers_is_that_of_the_public_models(tmp_path, tokenizer):
    size = "0.3b,num_hidden_layers=1,hidden_size=8,intermediate_size=8,vocab_size=103424"
    made = init_model("ernie45", size, tokenizer, tmp_path / "m", dtype="bfloat16")
    assert any("the rest is never used" in note for note in made.notes)
    assert tensors(made.path)["model.embed_tokens.weight"][1].shape == (103424, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "bfloat"}, "no such dtype.*did you mean bfloat16"),
        ({"shard_size": "5 gigs"}, "not a number of bytes"),
        ({"shard_size": "0GB"}, "not a number of bytes"),
    ],
)
def test_wrong_dtypes_and_sizes_are_refused(tmp_path, tokenizer, given, message):
    with pytest.raises(UsageError, match=message):
        init_model("ernie45", "tiny", tokenizer, tmp_path / "m", **given)
