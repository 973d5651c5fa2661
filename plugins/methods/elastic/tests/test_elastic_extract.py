"""``ernie extract``: from file to file, in both public layouts, with prediction layers; behind a kill; what is refused."""

import json
import os
import signal

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_checkpoint.safetensors_write import SafetensorsFile
from erniecore_elastic import extraction
from erniecore_elastic.extraction import Sizes, extract_directory
from erniecore_elastic.usage import write_usage
from erniecore_ernie45_moe.architecture import MoeArchitecture
from erniecore_ernie45_moe.state import Ernie45MoeStateAdapter
from erniecore_text.training import train
from safetensors.numpy import load_file, save_file

import erniecore
from erniecore.api import UsageError
from erniecore.api.run import load_bundle
from erniecore.cli.app import main
from erniecore.errors import CheckpointError

SOURCE = {
    "model_type": "ernie4_5_moe",
    "vocab_size": 320,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "use_bias": False,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 8,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 5,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
}
KEPT = [[0, 3], [1, 2], [0, 1], [2, 3], [0, 2], [1, 3], [0, 1]]


def made(directory, layout, **changes):
    """A model directory with random weights in one of the public layouts, and the usage of its experts."""
    source = {**SOURCE, **changes}
    directory.mkdir()
    rng, tensors = np.random.default_rng(1), {}
    for entry in Ernie45MoeStateAdapter(MoeArchitecture.parse(source)).maps(layout):
        for name, shape in zip(entry.sources, entry.source_shapes, strict=True):
            tensors.setdefault(name, (0.2 * rng.standard_normal(shape)).astype("float32"))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(source))
    train(["the quick brown fox jumps over the lazy dog " * 20], 320).save(directory)
    write_usage(directory.parent, 1, [[float(expert in row) for expert in range(4)] for row in KEPT])
    return directory


@pytest.mark.parametrize("layout", ["pt", "paddle"])
def test_files_of_both_layouts_and_prediction_layers(tmp_path, layout):
    source = made(tmp_path / "big", layout)
    done = extract_directory(source, tmp_path / "out", Sizes(depth=4, experts=2, selected=1))
    assert done.part.layers == (0, 2, 3, 5)
    tensors, before = load_file(tmp_path / "out" / "model.safetensors"), load_file(source / "model.safetensors")
    assert any("mtp_block" in name for name in tensors)
    assert done.parameters == sum(tensor.size for tensor in tensors.values())
    assert done.whole == sum(tensor.size for tensor in before.values())
    big, small = (load_bundle(path, mtp=True).bundle.model for path in (source, tmp_path / "out"))
    ids, following = paddle.randint(30, 300, [2, 9]), paddle.randint(30, 300, [2, 1])
    part = {"layers": list(done.part.layers), "experts": KEPT, "num_selected": [1]}
    masked = big.features(ids, **{name: paddle.to_tensor(values) for name, values in part.items()}).hidden
    assert np.array_equal(masked.numpy(), small.features(ids).hidden.numpy())
    residual, places = paddle.randn([2, 1, 16]), paddle.zeros([2, 1], "int64")
    one, other = (m.mtp_forward(residual, following, position_ids=places) for m in (big, small))
    assert np.array_equal(one.numpy(), other.numpy())


def test_prediction_layers_with_experts_are_cut_as_well(tmp_path):
    source = made(tmp_path / "big", "pt", moe_layer_start_index=0)
    extract_directory(source, tmp_path / "out", Sizes(experts=2))
    tensors, before = load_file(tmp_path / "out" / "model.safetensors"), load_file(source / "model.safetensors")
    prefix = "model.mtp_block.0.mlp"
    assert np.array_equal(tensors[f"{prefix}.gate.weight"], before[f"{prefix}.gate.weight"][KEPT[6]])
    for place, number in enumerate(KEPT[6]):
        name = "{}.experts.{}.down_proj.weight"
        assert np.array_equal(tensors[name.format(prefix, place)], before[name.format(prefix, number)])
    bias = tensors[f"{prefix}.moe_statics.e_score_correction_bias"]
    assert bias.shape == (1, 2)
    assert not bias.any()
    assert np.array_equal(  # the head, and what every token passes, are the bytes of the source
        tensors["lm_head.weight"], before["lm_head.weight"]
    )


def test_a_killed_extraction_goes_on_and_writes_one_tensor_at_a_time(tmp_path, monkeypatch):
    source = made(tmp_path / "big", "pt")
    monkeypatch.setattr(extraction, "_SHARD_BYTES", 9_000)
    wanted = Sizes(depth=4, experts=2)
    extract_directory(source, tmp_path / "straight", wanted)
    child = os.fork()
    if not child:
        add, count = SafetensorsFile.add, iter(range(10_000))

        def change(file, name, tensor):
            if next(count) == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            add(file, name, tensor)

        SafetensorsFile.add = change
        try:
            extract_directory(source, tmp_path / "out", wanted)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    written = []
    add = SafetensorsFile.add
    monkeypatch.setattr(
        SafetensorsFile, "add", lambda file, name, tensor: (written.append(name), add(file, name, tensor))
    )
    done = extract_directory(source, tmp_path / "out", wanted)
    assert any("went on behind" in note for note in done.notes)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    assert 0 < len(written) < len(index)
    for name in {*index.values(), "config.json", "model.safetensors.index.json"}:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name
    assert erniecore.load_model(tmp_path / "out") is not None


def test_the_command_says_what_it_would_write_and_measures_usage_on_texts(tmp_path, capsys):
    source = made(tmp_path / "big", "pt")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join("the quick brown fox jumps over dogs" for _ in range(40)))
    words = ["extract", str(source), "--out", str(tmp_path / "out"), "--experts", "2"]
    assert main([*words, "--depth", "4", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "layers: 0 2 3 5 of 6" in said
    assert "experts: 2 of 4 in each layer, 2 per token, by usage recorded" in said
    assert not (tmp_path / "out").exists()
    assert main([*words, "--data", str(texts), "--max-seq-len", "32", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["usage"].startswith("measured on")
    model, usage = erniecore.load_model(source), np.zeros(4)
    ids = paddle.to_tensor(load_bundle(source).bundle.tokenizer.encode("the quick brown fox jumps over dogs"))
    for block in list(model.blocks())[:1]:
        block.experts.register_forward_pre_hook(lambda _, given: np.add.at(usage, given[1].numpy(), given[2].numpy()))
    model.features(ids.unsqueeze(0))
    assert len(found["experts"]) == 7
    assert int(usage.argmax()) in found["experts"][1]


def test_what_cannot_be_cut_is_refused(tmp_path):
    source = made(tmp_path / "big", "pt", moe_layer_start_index=3, moe_layer_end_index=4)
    with pytest.raises(UsageError, match="cannot say which of these layers have experts"):
        extract_directory(source, tmp_path / "out", Sizes(depth=2))
    config = {**SOURCE, "quantization_config": {"quant_method": "erniecore", "quantizer": "wint8", "settings": {}}}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="packed"):
        extract_directory(source, tmp_path / "out", Sizes(depth=4))
    other = made(tmp_path / "other", "pt")
    (tmp_path / "expert-usage.json").write_text('{"assignments": [[1, 2]]}')
    with pytest.raises(CheckpointError, match="of another model"):
        extract_directory(other, tmp_path / "out", Sizes(experts=2))
