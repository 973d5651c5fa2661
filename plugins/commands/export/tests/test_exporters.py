"""Exports of real models: the Hugging Face format, our own names, and the proof that nothing changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import ml_dtypes  # noqa: F401 - with it numpy, and so safetensors, knows bfloat16
import numpy as np
import pytest
from erniecore_checkpoint.directories import verify_directory
from erniecore_checkpoint.save import save_checkpoint
from erniecore_export.exporting import compare_tokenizers, export_bundle, export_directory, verify_export
from erniecore_model_init.new_model import init_model
from safetensors.numpy import load_file

from erniecore.engine.arrays import to_numpy
from erniecore.engine.models import bundles
from erniecore.engine.models.model_files import public_config, save_model_directory
from erniecore.engine.models.weights import state_of
from erniecore.errors import CheckpointError, ConfigError, PluginNotFound, UsageError

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
KINDS = ("dense", "moe")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from erniecore_text.training import train

    directory = tmp_path_factory.mktemp("tokenizer")
    train(["the quick brown fox jumps over the lazy dog " * 20, "Hello there! 123"], 320).save(directory)
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokenizer):
    """A model directory with random weights and a tokenizer."""
    out = tmp_path_factory.mktemp("made") / "model"
    init_model("ernie45", "num_hidden_layers=1,hidden_size=32,intermediate_size=48", tokenizer, out, seed_value=7)
    return out


def config(directory):
    return json.loads((directory / "config.json").read_text())


# ------------------------------------------------------------------------------------------------- the hf exporter


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_holds_the_source_bit_for_bit(tmp_path, kind):
    done = export_directory(FIXTURES / kind, tmp_path / "out")
    before, after = load_file(FIXTURES / kind / "model.safetensors"), load_file(done.path / "model.safetensors")
    assert set(after) == set(before)
    for name, array in before.items():
        assert after[name].tobytes() == array.tobytes(), name
        assert after[name].dtype == array.dtype


@pytest.mark.parametrize("kind", KINDS)
def test_shards_hold_the_same(tmp_path, kind):
    export_directory(FIXTURES / kind, tmp_path / "out", options={"max_shard_bytes": 200_000})
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2
    assert all((tmp_path / "out" / name).stat().st_size < 210_000 for name in files[:-1])
    merged = {k: v for name in files for k, v in load_file(tmp_path / "out" / name).items()}
    before = load_file(FIXTURES / kind / "model.safetensors")
    assert {k: v.tobytes() for k, v in merged.items()} == {k: v.tobytes() for k, v in before.items()}
    assert index["metadata"]["total_size"] == sum(v.nbytes for v in before.values())


def test_the_directory_has_the_files_of_the_public_layout(made):
    assert sorted(path.name for path in made.iterdir()) == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "erniecore_manifest.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
    ]
    assert verify_directory(made) == []
    assert "random" in (made / "README.md").read_text()


def test_the_config_is_one_that_every_reader_accepts(made):
    found = config(made)
    assert "dtype" not in found
    assert found["torch_dtype"] == "float32"
    assert found["rope_theta"] == found["rope_parameters"]["rope_theta"] == 500000.0
    assert (found["model_type"], found["architectures"]) == ("ernie4_5", ["Ernie4_5ForCausalLM"])


def test_unknown_keys_stay_and_remote_code_goes():
    architecture = {"model_type": "x", "auto_map": {"AutoModel": "evil.py"}, "dtype": "float16", "later_key": [1]}
    assert public_config(architecture, "bfloat16") == {"model_type": "x", "later_key": [1], "torch_dtype": "bfloat16"}


def test_a_nested_rope_base_is_also_written_flat():
    written = public_config({"model_type": "x", "rope_parameters": {"rope_theta": 5.0, "factor": 2}}, "float32")
    assert written["rope_theta"] == 5.0
    assert written["rope_parameters"] == {"rope_type": "default", "rope_theta": 5.0, "factor": 2}


def test_a_model_without_a_type_is_refused():
    with pytest.raises(CheckpointError, match="no model_type"):
        public_config({}, "float32")


def test_an_export_in_bfloat16_rounds_weights_and_says_so_in_the_config(tmp_path, made):
    export_directory(made, tmp_path / "half", options={"dtype": "bfloat16"})
    assert config(tmp_path / "half")["torch_dtype"] == "bfloat16"
    assert str(load_file(tmp_path / "half" / "model.safetensors")["model.norm.weight"].dtype) == "bfloat16"


def test_router_weights_stay_float32_in_a_bfloat16_export(tmp_path):
    export_directory(FIXTURES / "moe", tmp_path / "half", options={"dtype": "bfloat16"})
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    dtypes = {name: str(array.dtype) for name, array in tensors.items()}
    assert {dtype for name, dtype in dtypes.items() if "mlp.gate.weight" in name or "correction" in name} == {"float32"}
    assert dtypes["model.embed_tokens.weight"] == "bfloat16"


def test_a_bfloat16_source_is_exported_as_bfloat16_bit_for_bit(tmp_path, made):
    export_directory(made, tmp_path / "half", options={"dtype": "bfloat16"})
    export_directory(tmp_path / "half", tmp_path / "again")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "again"))
    assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in two.items()}


# ------------------------------------------------------------------------------------------------- the proof


def test_a_changed_weight_is_noticed(tmp_path, made):
    bundle = bundles.load_bundle(made).bundle
    norm = state_of(bundle.model)["model.norm.weight"]
    norm.set_value(norm + 1e-6)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: .* not the same model: a weight differs"):
        verify_export(bundle, made)


def test_a_model_that_computes_something_else_is_noticed(made):
    bundle = bundles.load_bundle(made).bundle
    original = bundle.model.logits
    bundle.model.logits = lambda hidden: original(hidden) * 1.0001
    with pytest.raises(CheckpointError, match="logits differ by up to"):
        verify_export(bundle, made)


def test_a_tokenizer_that_encodes_differently_is_noticed(made, tmp_path):
    from erniecore_text.training import train

    before = bundles.load_bundle(made).bundle.tokenizer
    train(["zzz yyy xxx " * 30, "Hello there! 123"], 320).save(tmp_path)
    after = type(before).from_directory(tmp_path, before.chat_template)
    with pytest.raises(CheckpointError, match="encodes a text differently"):
        compare_tokenizers(before, after)


def test_a_template_that_renders_differently_is_noticed(made):
    tokenizer = bundles.load_bundle(made).bundle.tokenizer
    template = tokenizer.chat_template
    changed = type(template)(
        template.source.replace("\\n", "\\n\\n", 1), turn_end=template.turn_end, stop=template.stop
    )
    other = type(tokenizer)(tokenizer.model, tokenizer.files, changed)
    with pytest.raises(CheckpointError, match="a conversation is encoded differently"):
        compare_tokenizers(tokenizer, other)


def test_a_failed_proof_leaves_no_export(tmp_path, made, monkeypatch):
    bundle = bundles.load_bundle(made).bundle
    original = bundle.model.logits
    bundle.model.logits = lambda hidden: original(hidden) + 1
    with pytest.raises(CheckpointError, match="not the same model"):
        export_bundle(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_training_is_compared_in_eval_mode_and_goes_on_training(tmp_path, made):
    bundle = bundles.load_bundle(made).bundle
    bundle.model.train()
    export_bundle(bundle, tmp_path / "out")
    assert bundle.model.training


# ------------------------------------------------------------------------------------------------- our own names


def test_the_flat_export_has_our_names_and_shapes(tmp_path):
    export_directory(FIXTURES / "moe", tmp_path / "out", to="safetensors")
    bundle = bundles.load_bundle(FIXTURES / "moe").bundle
    stored = load_file(tmp_path / "out" / "weights-00001-of-00001.safetensors")
    expected = {name: to_numpy(tensor) for name, tensor in state_of(bundle.model).items()}
    assert {k: (v.shape, v.tobytes()) for k, v in stored.items()} == {
        k: (v.shape, v.tobytes()) for k, v in expected.items()
    }
    assert config(tmp_path / "out")["model_type"] == "ernie4_5_moe"


def test_the_flat_export_is_never_taken_for_a_public_one(tmp_path, made):
    export_directory(made, tmp_path / "out", to="safetensors")
    with pytest.raises(CheckpointError, match="holds no weights"):
        bundles.load_bundle(tmp_path / "out")


# ------------------------------------------------------------------------------------------------- sources and targets


def test_an_unknown_exporter_gets_the_nearest_name(tmp_path, made):
    with pytest.raises(PluginNotFound) as caught:
        export_directory(made, tmp_path / "out", to="hff")
    assert "hf" in caught.value.fix


def test_a_source_without_a_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="neither a model directory, nor a run, nor a checkpoint"):
        export_directory(tmp_path, tmp_path / "out")


def test_a_foreign_target_is_not_touched(tmp_path, made):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="did not write"):
        export_directory(made, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_export_onto_an_earlier_export_replaces_it(tmp_path, made):
    export_directory(made, tmp_path / "out")
    export_directory(FIXTURES / "dense", tmp_path / "out")
    assert not (tmp_path / "out" / "tokenizer.model").exists()


def run_with_checkpoint(directory, made, **groups):
    bundle = bundles.load_bundle(made).bundle
    model = {name: to_numpy(tensor) + np.float32(0.5) for name, tensor in state_of(bundle.model).items()}
    state = {"plugins": {"model": "ernie45", "method": "sft"}, "settings": {"model": {"path": str(made), "name": "x"}}}
    path = save_checkpoint(directory / "ckpt", 12, {"model": model, "optim": {}, **groups}, state)
    return path, model


@pytest.mark.parametrize("place", ["", "ckpt", "ckpt/step-00000012"])
def test_a_run_or_checkpoint_is_exported_with_its_tokenizer(tmp_path, made, place):
    _, model = run_with_checkpoint(tmp_path / "run", made)
    export_directory(tmp_path / "run" / place, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(stored["model.norm.weight"], model["model.norm.weight"])
    assert (tmp_path / "out" / "tokenizer.model").exists()
    assert "step-00000012" in (tmp_path / "out" / "README.md").read_text()


def test_averaged_weights_are_exported_where_there_are_any(tmp_path, made):
    average = {"model.norm.weight": np.full(32, 3.0, np.float32)}
    path, model = run_with_checkpoint(tmp_path / "run", made, ema=average)
    export_directory(path, tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(stored["model.norm.weight"], average["model.norm.weight"])
    np.testing.assert_array_equal(stored["model.embed_tokens.weight"], model["model.embed_tokens.weight"])


def test_a_finished_run_is_exported_from_its_model_directory(tmp_path, made):
    run_with_checkpoint(tmp_path / "run", made)
    shutil.copytree(made, tmp_path / "run" / "model")
    done = export_directory(tmp_path / "run", tmp_path / "out")
    assert done.notes[0].startswith("using the run's finished model") or "finished model" in " ".join(done.notes)
    one, two = (load_file(path / "model.safetensors") for path in (made, tmp_path / "out"))
    assert one["model.norm.weight"].tobytes() == two["model.norm.weight"].tobytes()


def test_a_damaged_checkpoint_is_not_exported(tmp_path, made):
    path, _ = run_with_checkpoint(tmp_path / "run", made)
    (path / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        export_directory(path, tmp_path / "out")


def test_an_adapters_checkpoint_is_not_a_model(tmp_path, made):
    state = {"plugins": {"model": "ernie45"}, "settings": {"model": {"path": str(made)}, "adapter": {"rank": 8}}}
    path = save_checkpoint(tmp_path / "ckpt", 1, {"model": {}}, state)
    with pytest.raises(CheckpointError, match="an adapter's weights"):
        export_directory(path, tmp_path / "out")


# ------------------------------------------------------------------------------------------------- vocabularies


def test_a_vocabulary_larger_than_the_tokenizer_is_mentioned(tmp_path, tokenizer):
    made = init_model("ernie45", "num_hidden_layers=1,hidden_size=16,vocab_size=400", tokenizer, tmp_path / "m")
    assert made.architecture["vocab_size"] == 400
    assert any("400 ids, the tokenizer 320" in note for note in made.notes)
    assert any("400 ids, the tokenizer 320" in note for note in bundles.load_bundle(tmp_path / "m").notes)


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(tmp_path, tokenizer, made):
    with pytest.raises(CheckpointError, match="the tokenizer has more ids than the model"):
        init_model("ernie45", "vocab_size=300", tokenizer, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_generation_settings_of_the_source_are_kept(tmp_path, made):
    bundle = replace(bundles.load_bundle(made).bundle, generation={"temperature": 0.8})
    save_model_directory(bundle, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert written["temperature"] == 0.8
    assert written["eos_token_id"] == bundle.tokenizer.eos_id


# ------------------------------------------------------------------------------------------------- another reader

READER = """
import sys, numpy as np, torch
from transformers import AutoModelForCausalLM
model, info = AutoModelForCausalLM.from_pretrained(sys.argv[1], output_loading_info=True, dtype=torch.float32)
assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
ids = torch.from_numpy(np.load(sys.argv[2]))
with torch.no_grad():
    np.save(sys.argv[3], model.eval()(ids).logits.numpy())
"""


@pytest.mark.slow
@pytest.mark.skipif("ERNIE_HF_PYTHON" not in os.environ, reason="ERNIE_HF_PYTHON names no python with transformers")
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_export_and_computes_the_same(tmp_path, kind):
    import paddle

    export_directory(FIXTURES / kind, tmp_path / "out", options={"max_shard_bytes": 300_000})
    ids = np.random.default_rng(0).integers(0, 500, (2, 24))
    np.save(tmp_path / "ids.npy", ids)
    command = [os.environ["ERNIE_HF_PYTHON"], "-c", READER, str(tmp_path / "out"), "ids.npy", "logits.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    model = bundles.load_bundle(tmp_path / "out").bundle.model
    with paddle.no_grad():
        ours = to_numpy(model.logits(model.features(paddle.to_tensor(ids)).hidden))
    np.testing.assert_allclose(ours, np.load(tmp_path / "logits.npy"), atol=1e-5, rtol=0)


def test_option_that_an_exporter_does_not_have_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"hf\.dtipe: unknown key; did you mean hf\.dtype\?"):
        export_directory(FIXTURES / "dense", tmp_path / "out", options={"dtipe": "bfloat16"})
    assert not (tmp_path / "out").exists()


def test_source_that_does_not_exist_is_said_to_with_the_nearest_directory(tmp_path):
    (tmp_path / "my-model").mkdir()
    with pytest.raises(UsageError, match=r"no such directory; did you mean .*my-model\?"):
        export_directory(tmp_path / "my-modle", tmp_path / "out")
