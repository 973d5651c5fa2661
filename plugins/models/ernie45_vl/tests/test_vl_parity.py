"""The vision-language model against the reference run stored in tests/fixtures/models/vl_moe."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_vl.plugin import plugin
from erniecore_ernie45_vl.positions import IMAGE, VIDEO, read_grids

pytestmark = pytest.mark.usefixtures("each_kernel")

BATCHES = ("image", "two_images", "video", "mixed", "text", "long_video")


@pytest.fixture(scope="module")
def vl(golden):
    return golden("vl_moe")


@pytest.fixture
def model(vl, build):
    model = build(plugin, vl.config, vl.weights)
    model.eval()
    return model


def by_expert(experts, weights):
    """The same assignments in the order of their experts."""
    order = np.argsort(experts, axis=1)
    return np.take_along_axis(experts, order, axis=1), np.take_along_axis(weights, order, axis=1)


@pytest.mark.parametrize("batch", BATCHES)
def test_logits(batch, vl, model):
    """After a long video ours are the positions of the published code, which the reference does not share."""
    golden = "logits_paddle_positions" if batch == "long_video" else "logits"
    found = model(**vl.inputs(batch)).numpy() * vl.real_tokens(batch)[..., None]
    np.testing.assert_allclose(found, vl.tensors[f"{batch}.{golden}"], atol=2e-5, rtol=0)


def test_positions_can_be_given(vl, model):
    positions = paddle.to_tensor(vl.tensors["long_video.position_ids"].transpose(1, 2, 0))
    found = model(**vl.inputs("long_video"), position_ids=positions).numpy()
    np.testing.assert_allclose(found, vl.tensors["long_video.logits"], atol=2e-5, rtol=0)


def test_config_as_on_the_hub_builds_the_same_model(vl, model, build):
    hub = json.loads((vl.directory / "config.hub_style.json").read_text())
    other = build(plugin, hub, vl.weights)
    other.eval()
    batch = vl.inputs("mixed")
    np.testing.assert_array_equal(other(**batch).numpy(), model(**batch).numpy())


@pytest.mark.parametrize("batch", ["image", "two_images", "mixed"])
def test_kinds_of_tokens_are_found_by_their_ids(batch, vl, model):
    given = vl.inputs(batch)
    alone = {name: value for name, value in given.items() if not name.endswith("token_type_ids")}
    np.testing.assert_array_equal(model(**alone).numpy(), model(**given).numpy())


@pytest.mark.parametrize(
    ("batch", "kind"),
    [("image", "image"), ("two_images", "image"), ("video", "video"), ("mixed", "video"), ("long_video", "video")],
)
def test_vision_tower_and_resampler(batch, kind, vl, model):
    suffix = "" if kind == "image" else "_videos"
    pixels = paddle.to_tensor(vl.tensors[f"{batch}.pixel_values{suffix}"])
    grids = read_grids(vl.tensors[f"{batch}.{kind}_grid_thw"], IMAGE if kind == "image" else VIDEO, 2)
    patches = model.vision_model(pixels, grids)
    tokens = model.model.resampler_model(patches, grids).numpy()
    if f"{batch}.vision_tower_{kind}" in vl.tensors:
        np.testing.assert_allclose(patches.numpy(), vl.tensors[f"{batch}.vision_tower_{kind}"], atol=2e-5, rtol=0)
    np.testing.assert_allclose(tokens, vl.tensors[f"{batch}.resampled_{kind}"], atol=2e-5, rtol=0)


def test_hidden_states(vl, model):
    vl.check_hidden_states(model, "mixed", embedding=False)


def test_rotary_positions_on_three_axes(vl, model):
    vl.check_rotary_axes(model, "mixed")


@pytest.mark.parametrize("batch", ["image", "two_images", "mixed", "text"])
def test_routing(batch, vl, model):
    seen = {}
    for index, block in enumerate(model.blocks(), start=1):
        route = block.route_by

        def spy(x_TH, router, route=route, index=index):
            seen[index, router] = route(x_TH, router)
            return seen[index, router]

        block.route_by = spy
    model(**vl.inputs(batch))
    kinds, real = vl.tensors.get(f"{batch}.moe_mm_token_type_ids"), vl.real_tokens(batch).reshape(-1)
    vision = np.zeros(len(real), bool) if kinds is None else kinds.reshape(-1) != 0
    assert set(seen) == {(layer, router) for layer in (1, 2, 3) for router in range(1 + vision.any())}
    for (layer, router), routing in seen.items():
        mine = vision if router else ~vision
        prefix = f"{batch}.router.layer{layer}.{'vision' if router else 'text'}"
        rows = real[mine]
        logits, selected, weights = (vl.tensors[f"{prefix}.{name}"][rows] for name in ("logits", "selected", "weights"))
        np.testing.assert_allclose(routing.logits.numpy()[mine & real], logits, atol=2e-5, rtol=0)
        experts, found = by_expert(routing.experts.numpy()[mine & real], routing.weights.numpy()[mine & real])
        golden_experts, golden_weights = by_expert(selected, weights)
        np.testing.assert_array_equal(experts, golden_experts)
        np.testing.assert_allclose(found, golden_weights, atol=2e-6, rtol=0)


def loss_of(vl, model):
    losses, count = vl.token_losses(model, "mixed")
    return losses.sum() / count


@pytest.mark.usefixtures("padding_of_the_reference")
def test_loss(vl, model):
    assert float(loss_of(vl, model)) == pytest.approx(vl.numbers["loss"]["mixed"], rel=1e-6)


@pytest.mark.usefixtures("padding_of_the_reference")
@pytest.mark.parametrize("granularity", ["none", "full"])
def test_gradients(granularity, vl, model, public_gradients):
    model.train()
    model.train_vision(True)
    model.set_recompute(granularity)
    loss_of(vl, model).backward()
    found = public_gradients(plugin, model)
    vl.check_gradients(found, atol=1e-6)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("case", ["gen_image", "gen_pair"])
def test_greedy_answers(case, cached, vl, model, cache):
    tokens, logits = answer(vl, case, model, cache if cached else None)
    np.testing.assert_array_equal(tokens, vl.tensors[f"{case}.new_tokens"])
    np.testing.assert_allclose(logits, vl.tensors[f"{case}.logits"], atol=2e-5, rtol=0)


def answer(vl, case, model, cache):
    """16 tokens, each the likeliest; images are seen in the first pass, or without a cache in every pass."""
    start = {
        name[len(case) + 1 :]: paddle.to_tensor(a) for name, a in vl.tensors.items() if name.startswith(f"{case}.")
    }
    start = {name: value for name, value in start.items() if name not in ("logits", "new_tokens")}
    positions, following = model.positions(**start)
    ids, tokens, logits = start["input_ids"], [], []
    given = {**start, "position_ids": positions}
    for step in range(16):
        with paddle.no_grad():
            last = model(**given, cache=cache)[:, -1]
        token = last.argmax(axis=-1, keepdim=True)
        tokens.append(token.numpy())
        logits.append(last.numpy())
        ids, mask = paddle.concat([ids, token], axis=1), given.get("attention_mask")
        place = (following + step).reshape([-1, 1, 1]).expand([-1, 1, 3])
        positions = paddle.concat([positions, place], axis=1)
        if mask is not None:
            given["attention_mask"] = paddle.concat([mask, paddle.ones_like(token)], axis=1)
        if cache is not None:
            mask = given.get("attention_mask")
            given = {"input_ids": token, "position_ids": place, **({} if mask is None else {"attention_mask": mask})}
            continue
        kinds = {name: given[name] for name in given if name.endswith("token_type_ids")}
        longer = {name: paddle.concat([value, paddle.zeros_like(token)], axis=1) for name, value in kinds.items()}
        given = {**given, **longer, "input_ids": ids, "position_ids": positions}
    return np.concatenate(tokens, axis=1), np.stack(logits, axis=1)
