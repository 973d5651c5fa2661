"""What the plan counts of towers, against what they keep: paddle's own count of bytes."""

import gc
import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_vl.plugin import plugin as vl
from erniecore_ernie45_vl.positions import Grid
from erniecore_model_init.new_model import parse_size
from erniecore_paddleocr_vl.plugin import plugin as ocr
from paddle.base import core  # noqa: TID253

from erniecore.cli.app import main


def made(plugin):
    """(model, shape of the plan), all of it trained."""
    architecture, _, _ = parse_size(plugin, "tiny")
    config = {"config": vl.Config(train=("text", "vision", "resampler"))} if plugin is vl else {}
    model = plugin.ernie_build_model(architecture=architecture, dtype="float32", **config)
    return model, plugin.ernie_decoder_shape(architecture=architecture)


@pytest.mark.parametrize("plugin", [vl, ocr], ids=lambda plugin: plugin.name)
def test_towers_keep_what_the_plan_counts(plugin):
    model, shape = made(plugin)
    grids = [Grid(1, 16, 16), Grid(1, 16, 16)]
    joint = model.model.resampler_model if plugin is vl else model.projector
    pixels = paddle.zeros([512, 588])
    joint(model.vision_model(pixels, grids), grids)  # what is kept between calls is there, whichever tests ran before
    gc.collect()
    counts = [core.host_memory_stat_current_value("Allocated", 0)]
    seen = model.vision_model(pixels, grids)
    counts.append(core.host_memory_stat_current_value("Allocated", 0))
    tokens = joint(seen, grids)
    counts.append(core.host_memory_stat_current_value("Allocated", 0))
    tower, after = (np.diff(counts) / (4 * 512)).tolist()
    assert tokens.shape[0] == 128
    assert shape.vision.depth * shape.vision.block + shape.vision.ends == pytest.approx(tower, rel=0.08)
    assert shape.vision.joint == pytest.approx(after, rel=0.1)
    assert shape.vision.patches == 4
    for beginning in (shape.vision.tower, shape.vision.joints):
        assert any(name.startswith(beginning) for name, _ in model.named_parameters())


@pytest.mark.parametrize("plugin", [vl, ocr], ids=lambda plugin: plugin.name)
def test_a_tower_that_is_computed_again_gives_the_same_gradients(plugin):
    model, _ = made(plugin)
    architecture, _, _ = parse_size(plugin, "tiny")
    (ids, media), *_ = plugin.conformance_media(architecture)
    inputs = {name: paddle.to_tensor(np.asarray(values)) for name, values in media.items()}

    def gradients(granularity):
        model.set_recompute(granularity)
        model.clear_gradients()
        model.features(paddle.to_tensor([ids]), **inputs).hidden[..., :9].sum().backward()
        return {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}

    once, again = gradients("none"), gradients("full")
    assert any(name.startswith("vision_model.") for name in once)
    assert once.keys() == again.keys()
    for name, values in once.items():
        np.testing.assert_allclose(again[name], values, rtol=1e-5, atol=1e-6 * np.abs(values).max(), err_msg=name)


def test_the_plan_counts_patches_up_to_the_bound_and_only_of_what_is_trained(capsys):
    def planned(*words):
        code = main(["plan", "--model", "ernie45-vl", "model.size=tiny", "--method", "sft", "--json", *words])
        assert code == 0
        return json.loads(capsys.readouterr().out)["estimate"]["activations"]

    everything = "model.train=text,vision,resampler"
    text, whole = planned(), planned(everything)
    assert (text["vision"], text["seeing"] > 0) == (0, True)
    half = planned(everything, "data.max_patches=512")
    assert whole["vision"] == 2 * half["vision"] > 0  # rows of 256 tokens are 1024 patches
    assert planned(everything, "data.max_patches=4096") == whole
    again = planned(everything, "data.max_patches=512", "train.recompute=full")
    assert again["vision"] < 0.6 * half["vision"]
    assert planned("model.train=text,resampler")["vision"] < whole["vision"] / 2
    assert planned("adapter=lora")["vision"] == 0 < planned("adapter=lora", "adapter.targets=tower")["vision"]


def test_layouts_over_accelerators_count_tower_and_projector(capsys):
    def planned(*words):
        args = ["--model", "paddleocr-vl", "model.size=0.9b", "--method", "sft", "--device", "cuda", "parallel=hybrid"]
        assert main(["plan", *args, "--accelerators", "1", "--accelerator", "H200", "--json", *words]) == 0
        made = json.loads(capsys.readouterr().out)["fastest"]
        assert made["options"] == {"recompute": "none", "offload": False}
        return made["memory"]

    few, many = planned("data.max_patches=1024"), planned("data.max_patches=4096")
    assert few["gradients"] == pytest.approx(2 * 905.6e6, rel=0.01)  # all parameters
    vision = ocr.ernie_decoder_shape(architecture=parse_size(ocr, "0.9b")[0]).vision
    kept = vision.depth * vision.block + vision.ends + vision.joint
    assert many["activations"] - few["activations"] == 2 * 3072 * kept
