"""What is read from a config.json, and what is refused."""

import json
from importlib import resources

import pytest
import yaml
from erniecore_ernie45.architecture import Architecture, read_source
from erniecore_ernie45.config import DenseConfig

from erniecore.api import CheckpointError, ConfigError


def without(source, key):
    return {name: value for name, value in source.items() if name != key}


def test_both_spellings_of_the_rope_keys_are_read(golden):
    nested = golden("dense").config
    flat = json.loads((golden("dense").directory / "config.hub_style.json").read_text())
    assert "rope_theta" not in nested
    assert "rope_parameters" not in flat
    assert Architecture.parse(nested).rope_theta == Architecture.parse(flat).rope_theta == 500000.0


def test_unknown_keys_are_kept(reference):
    source = reference.config(a_key_of_tomorrow=[1, 2])
    assert Architecture.parse(source).source["a_key_of_tomorrow"] == [1, 2]


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta", "vocab_size", "num_key_value_heads"])
def test_a_missing_key_is_named_with_its_file(key, reference):
    with pytest.raises(CheckpointError) as caught:
        Architecture.parse(without(reference.config(), key), "somewhere/config.json")
    assert caught.value.where == f"somewhere/config.json: {key}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", {"type": "linear", "factor": 2}),
        ("hidden_act", "gelu"),
        ("model_type", "ernie4_5_moe"),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("hidden_size", 0),
        ("vocab_size", "many"),
        ("num_hidden_layers", True),
        ("rms_norm_eps", -1.0),
        ("tie_word_embeddings", "yes"),
        ("compression_ratio", 2.0),
    ],
)
def test_an_impossible_value_is_refused_at_its_key(key, value, reference):
    with pytest.raises(CheckpointError) as caught:
        Architecture.parse(reference.config(**{key: value}))
    assert caught.value.where.endswith(f": {key}")


def test_two_rope_bases_that_differ_are_refused(reference):
    source = reference.config(rope_theta=10000.0, rope_parameters={"rope_theta": 500000.0})
    with pytest.raises(CheckpointError, match="contradicts"):
        Architecture.parse(source)


def test_other_rope_types_are_refused(reference):
    source = without(reference.config(), "rope_theta")
    source["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "yarn"}
    with pytest.raises(CheckpointError, match="not supported"):
        Architecture.parse(source)


def test_head_dim_that_cannot_be_derived_is_asked_for(reference):
    source = without(reference.config(num_attention_heads=5, num_key_value_heads=5), "head_dim")
    with pytest.raises(CheckpointError, match="head_dim"):
        Architecture.parse(source)


def test_settings_replace_keys_of_the_file(tmp_path, reference):
    (tmp_path / "config.json").write_text(json.dumps(reference.config()))
    source = read_source(DenseConfig(path=str(tmp_path), architecture={"rope_theta": 5.0}))
    assert source == reference.config(rope_theta=5.0)


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_a_file_that_is_no_json_object_is_refused(content, tmp_path):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_source(DenseConfig(path=str(tmp_path)))


def test_saying_nothing_and_saying_two_things_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.path"):
        read_source(DenseConfig())
    with pytest.raises(ConfigError, match=r"model\.size"):
        read_source(DenseConfig(path=str(tmp_path), size="tiny"))


@pytest.mark.parametrize("name", ["tiny", "0.3b"])
def test_recipes_describe_a_model(name):
    text = (resources.files("erniecore_ernie45.recipes") / f"{name}.yaml").read_text()
    Architecture.parse(yaml.safe_load(text)["model"]["architecture"])
