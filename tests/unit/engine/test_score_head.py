"""Score heads: what config.json says, how the weight is stored, and directories whose files do not keep the promise."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from erniecore.engine.loading import open_model
from erniecore.engine.models.config_json import has_score, with_score
from erniecore.engine.models.model_files import save_model_directory
from erniecore.engine.models.score_head import add_score_head, completed, head_map, without_head
from erniecore.errors import CheckpointError

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"architectures": ["Ernie4_5ForCausalLM"]}, "Ernie4_5ForSequenceClassification"),
        ({"architectures": ["Ernie4_5_MoeForCausalLM"]}, "Ernie4_5_MoeForSequenceClassification"),
        ({"model_type": "ernie4_5_moe"}, "Ernie4_5_MoeForSequenceClassification"),
        ({"architectures": ["Mine"]}, "MineForSequenceClassification"),
    ],
)
def test_config_in_the_words_of_transformers(before, after):
    found = with_score({**before, "kept": 7})
    assert (found["architectures"], found["num_labels"], found["kept"]) == ([after], 1, 7)
    assert has_score(found)
    assert not has_score(before)
    assert with_score(found) == found


def test_the_weight_is_turned_and_stays_float32():
    entry = head_map({"hidden_size": 3})
    column = np.array([[1.0], [2.0], [3.0]], np.float32)
    (row,) = entry.store(column)
    assert (entry.source_shapes, row.tolist(), entry.dtype) == (((1, 3),), [[1.0, 2.0, 3.0]], "float32")
    np.testing.assert_array_equal(entry.load([row]), column)


@pytest.fixture
def saved(tmp_path):
    """A model directory with a head, stored in bfloat16."""
    bundle = open_model(MODELS / "dense")
    add_score_head(bundle.model)
    bundle = completed(bundle)
    assert without_head(bundle.adapter) is not bundle.adapter
    save_model_directory(bundle, tmp_path / "model", dtype="bfloat16")
    return bundle, tmp_path / "model"


def test_a_directory_of_lower_precision_keeps_the_head(saved):
    bundle, directory = saved
    again = open_model(directory)
    np.testing.assert_array_equal(again.model.score.weight.numpy(), bundle.model.score.weight.numpy())
    assert completed(again) is again


def changed(directory, change):
    (directory / "erniecore_manifest.json").unlink()
    change(directory)
    return open_model(directory)


def without_weight(directory):
    tensors = {n: a for n, a in load_file(MODELS / "dense" / "model.safetensors").items() if n != "score.weight"}
    save_file(tensors, directory / "model.safetensors")


def plain_config(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "architectures": ["Ernie4_5ForCausalLM"]}))


@pytest.mark.parametrize(
    ("change", "message"), [(without_weight, "score.weight is missing"), (plain_config, "score.weight is unexpected")]
)
def test_config_and_weights_that_contradict(saved, change, message):
    with pytest.raises(CheckpointError, match=message):
        changed(saved[1], change)
