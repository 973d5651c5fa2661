"""Conversations with images as prompts, and answers through the decoder that text has."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_vl.multimodal import MultimodalModel
from erniecore_ernie45_vl.plugin import plugin
from erniecore_ernie45_vl.prompts import segments

import erniecore


@pytest.fixture(scope="module")
def vl(golden):
    return golden("vl_moe")


@pytest.fixture(scope="module")
def model(vl, build):
    return build(plugin, vl.config, vl.weights)


def images(vl, case="gen_image"):
    return {name: paddle.to_tensor(vl.tensors[f"{case}.{name}"]) for name in ("pixel_values", "image_grid_thw")}


@pytest.mark.parametrize("use_cache", [False, True])
def test_greedy_answer_about_an_image(use_cache, vl, model):
    multimodal = MultimodalModel(model, **images(vl))
    ids = vl.tensors["gen_image.input_ids"]
    found = erniecore.generate(multimodal, ids, max_new_tokens=16, use_cache=use_cache, eos=())
    np.testing.assert_array_equal(found.numpy(), vl.tensors["gen_image.new_tokens"])


def test_several_prompts_are_refused(vl, model):
    ids = np.repeat(vl.tensors["gen_image.input_ids"], 2, axis=0)
    with pytest.raises(ValueError, match="one prompt at a time"):
        erniecore.generate(MultimodalModel(model, **images(vl)), ids, max_new_tokens=1)


def cases(models_dir):
    return json.loads((models_dir / "chat_templates" / "golden.json").read_text())["vl"]


@pytest.mark.parametrize("index", range(4))
def test_prompts_are_those_of_the_published_template(index, models_dir):
    case = cases(models_dir)[index]
    parts = [p["type"] for m in case["messages"] if not isinstance(m["content"], str) for p in m["content"]]
    counts = {kind: [1] * parts.count(kind) for kind in ("image", "video")}
    options = {"add_generation_prompt": case["kwargs"].get("add_generation_prompt", True)}
    found = segments(case["messages"], counts, think=case["kwargs"].get("enable_thinking", False), **options)
    assert "".join(segment.text for segment in found) == case["expected"]


def test_an_image_has_a_placeholder_for_each_token_and_users_write_none():
    content = [{"type": "image"}, {"type": "text", "text": "<|IMAGE_PLACEHOLDER|>"}]
    found = segments([{"role": "user", "content": content}], {"image": [6]})
    trusted = "".join(segment.text for segment in found if segment.trusted)
    assert trusted.count("<|IMAGE_PLACEHOLDER|>") == 6
    assert [segment.text for segment in found if not segment.trusted] == ["<|IMAGE_PLACEHOLDER|>"]


@pytest.mark.parametrize(
    ("content", "counts", "message"),
    [
        ([{"type": "image"}], {}, "more parts of type image"),
        ("x", {"video": [4]}, "more images"),
        ([{"type": "sound"}], {}, "'sound'"),
    ],
)
def test_parts_and_images_that_do_not_fit(content, counts, message):
    with pytest.raises(ValueError, match=message):
        segments([{"role": "user", "content": content}], counts)
