"""Layouts of thousands of ranks, checked on paper."""

from dataclasses import replace

import pytest
from erniecore_hybrid_parallel.config import HybridConfig
from erniecore_hybrid_parallel.scale import check

from erniecore.config import compose
from erniecore.engine.preparation.model import read_model


@pytest.fixture(scope="module")
def large():
    """Shape, layout and parameters of the largest recipe."""
    words = ["model.name=ernie45-moe", "model.size=300b-a47b", "method.name=sft"]
    loaded = compose.load(None, words, {}, {})
    host = loaded.host
    architecture, adapter, _ = read_model(host, loaded.settings.model, loaded.plugins["method"])
    shapes = {entry.name: entry.shape for entry in adapter.maps("pt")}
    hook = host.hook
    return (
        hook.ernie_decoder_shape(architecture=architecture),
        hook.ernie_model_layout(architecture=architecture),
        shapes,
    )


@pytest.mark.parametrize("chunks", [1, 4])
def test_2016_ranks_hold_every_parameter_once_and_reach_the_end_of_a_step(large, chunks):
    shape, layout, shapes = large
    config = HybridConfig(tensor=8, pipeline=12, sharding=21, chunks=chunks)
    found = check(config, 2016, shape, layout, shapes, 120)
    assert found.wrong == ()
    assert sum(found.split) == len(shape.layers)
    assert len(found.split) == 12 * chunks
    assert max(found.parameters) < 1.25 * sum(found.parameters) / 12


def test_experts_on_several_ranks_of_rows(large):
    shape, layout, shapes = large
    assert check(HybridConfig(pipeline=6, expert=8, data=8), 48, shape, layout, shapes, 12).wrong == ()


def test_the_recipe_in_fp8_has_a_rank_map_and_a_plan_with_context(large, capsys):
    """ERNIEKit's layout of the 300B model in FP8, tensor 8 and pipeline 2, and each row on two ranks."""
    import json

    from erniecore.cli.app import main

    shape, layout, shapes = large
    assert check(HybridConfig(tensor=8, pipeline=2, context=2, sequence=True), 32, shape, layout, shapes, 8).wrong == ()
    words = ["plan", "--model", "ernie45-moe", "model.size=300b-a47b", "--method", "sft", "--quantizer", "fp8-qat"]
    words += ["--parallel", "hybrid", "parallel.tensor=8", "parallel.pipeline=2", "parallel.sequence=true"]
    words += ["train.accumulation=8", "train.recompute=full", "--device", "cuda", "--seq", "8192", "--json"]
    plans = []
    for more in ([], ["parallel.context=2"]):
        assert main([*words, *more]) == 0
        plans.append(json.loads(capsys.readouterr().out)["estimate"]["stages"])
    assert [len(stages) for stages in plans] == [2, 2]
    for whole, half in zip(*plans, strict=True):
        assert half["weights"] == whole["weights"]
        assert half["activations"] < 0.6 * whole["activations"]


def test_a_parameter_without_a_place_is_found(large):
    shape, layout, shapes = large
    rules = tuple(rule for rule in layout.rules if rule[0] != "*.self_attn.o_proj.weight")
    found = check(HybridConfig(tensor=8, pipeline=2), 16, shape, replace(layout, rules=rules), shapes, 4)
    assert "model.layers.0.self_attn.o_proj.weight has no style" in found.wrong


def test_a_width_that_ranks_cannot_share_is_found(large):
    shape, layout, shapes = large
    found = check(HybridConfig(tensor=3, pipeline=2), 6, shape, layout, shapes, 4)
    assert any("3 ranks cannot share" in text for text in found.wrong)


def test_layers_that_no_stage_holds_are_found(large):
    shape, layout, shapes = large
    more = {**shapes, "model.layers.999.self_attn.o_proj.weight": (8, 8)}
    found = check(HybridConfig(pipeline=2), 2, shape, layout, more, 4)
    assert "model.layers.999.self_attn.o_proj.weight is on stages []" in found.wrong
