"""What a config.json of ERNIE 3.0 may say, and the orders of segments as classes."""

from __future__ import annotations

from importlib.resources import files

import pytest
import yaml
from erniecore_ernie3.architecture import Architecture
from erniecore_ernie3.orders import num_orders, order_class, order_of
from erniecore_ernie3.state import Ernie3StateAdapter

from erniecore.api import CheckpointError


def recipe(name):
    return yaml.safe_load(files("erniecore_ernie3.recipes").joinpath(f"{name}.yaml").read_text())["model"][
        "architecture"
    ]


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"num_task_layers": 3}, "num_task_layers", "not below num_hidden_layers = 3"),
        ({"task_modules": ["nlu"]}, "task_modules", "not the task modules"),
        ({"task_modules": ["nlg", "chat"]}, "task_modules", "not the task modules"),
        ({"recurrence": "none"}, "recurrence", "not known"),
        ({"num_attention_heads": 5}, "num_attention_heads", "do not divide hidden_size = 96"),
        ({"task_num_attention_heads": 64}, "task_num_attention_heads", "do not divide task_hidden_size"),
        ({"hidden_act": "silu"}, "hidden_act", "not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings", "not supported"),
        ({"max_segments": 7}, "max_segments", "larger than any model"),
        ({"num_labels": 2, "task_modules": ["nlg"]}, "num_labels", "needs the module `nlu`"),
        ({"memory_length": None}, "memory_length", "missing"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(changes, key, says):
    with pytest.raises(CheckpointError, match=says) as caught:
        Architecture.parse({**recipe("tiny"), **changes})
    assert caught.value.where == f"config.json: {key}"


def test_the_large_recipe_has_the_sizes_of_the_paper():
    arch = Architecture.parse(recipe("10b"))
    parameters = sum(_size(one.shape) for one in Ernie3StateAdapter(arch).maps("pt"))
    assert (arch.num_universal_layers, arch.num_task_layers, arch.universal.head_dim, arch.task.head_dim) == (
        48,
        12,
        64,
        64,
    )
    # 48 * (4 h^2 + 8 h^2) + 2 * 12 * 12 * 768^2 + vocabulary: the "10 billion parameters" of the paper
    assert round(parameters / 1e9, 2) == 10.01


def _size(shape):
    size = 1
    for n in shape:
        size *= n
    return size


def test_three_segments_have_nine_classes_and_each_is_one_order():
    assert [num_orders(m) for m in (1, 2, 3, 4)] == [1, 3, 9, 33]
    assert [order_of(index, 3) for index in range(4)] == [(0,), (0, 1), (1, 0), (0, 1, 2)]
    assert [order_class(order_of(index, 4)) for index in range(33)] == list(range(33))
    assert order_class((2, 1, 0)) == 8
    for wrong in ((), (0, 2), (1, 1)):
        with pytest.raises(ValueError, match="not an order"):
            order_class(wrong)
    with pytest.raises(ValueError, match="class 9 of 9"):
        order_of(9, 3)


def test_checkpoints_of_other_models_are_refused_and_a_full_one_serves_generation_alone():
    full = Ernie3StateAdapter(Architecture.parse(recipe("tiny")))
    small = Ernie3StateAdapter(Architecture.parse({**recipe("tiny"), "task_modules": ["nlg"]}))
    names = [name for one in full.maps("pt") for name in one.sources]
    kept = {name for one in small.maps("pt", names) for name in one.sources}
    assert {name for name in names if not small.ignored(name)} == kept
    assert not any(full.ignored(name) for name in names)
    with pytest.raises(CheckpointError, match=r"not an ERNIE 3\.0 checkpoint"):
        full.layout_of(["model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight"])
    with pytest.raises(CheckpointError, match="unknown layout"):
        full.maps("paddle")


def test_the_plan_counts_two_matrices_as_two_thirds_of_a_gated_mlp():
    shape = Architecture.parse(recipe("10b")).shape()
    wide, narrow = shape.layers[0], shape.layers[-1]
    assert (len(shape.layers), wide.head_dim, narrow.head_dim) == (60, 64, 64)
    assert 3 * wide.mlp * 4096 == pytest.approx(2 * 16384 * 4096, rel=1e-3)
    assert 3 * narrow.mlp * 4096 == pytest.approx(2 * 3072 * 768, rel=1e-3)
    assert wide.mlp % 8 == narrow.mlp % 8 == 0
