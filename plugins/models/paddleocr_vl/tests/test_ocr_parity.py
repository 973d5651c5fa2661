"""PaddleOCR-VL against the reference run stored in tests/fixtures/models/paddleocr_vl."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_vl.positions import IMAGE, read_grids
from erniecore_paddleocr_vl.plugin import plugin

pytestmark = pytest.mark.usefixtures("each_kernel")

BATCHES = ("image", "pair", "two_in_one", "text")


@pytest.fixture(scope="module")
def ocr(golden):
    return golden("paddleocr_vl")


@pytest.fixture
def model(ocr, build):
    model = build(plugin, ocr.config, ocr.weights)
    model.eval()
    return model


@pytest.mark.parametrize("batch", BATCHES)
def test_logits(batch, ocr, model):
    found = model(**ocr.inputs(batch)).numpy() * ocr.real_tokens(batch)[..., None]
    np.testing.assert_allclose(found, ocr.tensors[f"{batch}.logits"], atol=2e-5, rtol=0)


def test_config_as_on_the_hub_builds_the_same_model(ocr, model, build):
    hub = json.loads((ocr.directory / "config.hub_style.json").read_text())
    other = build(plugin, hub, ocr.weights)
    other.eval()
    batch = ocr.inputs("pair")
    np.testing.assert_array_equal(other(**batch).numpy(), model(**batch).numpy())


@pytest.mark.parametrize("batch", ["image", "pair", "two_in_one"])
def test_tower_projector_and_positions(batch, ocr, model):
    given = ocr.inputs(batch)
    grids = read_grids(ocr.tensors[f"{batch}.image_grid_thw"], IMAGE, 2)
    pixels = given["pixel_values"].reshape([given["pixel_values"].shape[0], -1])
    patches = model.vision_model(pixels, grids)
    found = {
        "vision_embeddings": model.vision_model.embed(pixels, grids),
        "vision_encoder": patches,
        "projected": model.projector(patches, grids),
    }
    for name, values in found.items():
        np.testing.assert_allclose(values.numpy(), ocr.tensors[f"{batch}.{name}"], atol=2e-5, rtol=0, err_msg=name)
    positions, following = model.positions(**given)
    real = ocr.real_tokens(batch)
    golden = ocr.tensors[f"{batch}.position_ids"].transpose(1, 2, 0)
    np.testing.assert_array_equal(positions.numpy()[real], golden[real])
    lengths = ocr.tensors[f"{batch}.input_ids"].shape[1] if real.all() else real.sum(axis=1)
    np.testing.assert_array_equal(following.numpy() - lengths, ocr.tensors[f"{batch}.rope_deltas"][:, 0])


def test_hidden_states(ocr, model):
    ocr.check_hidden_states(model, "pair", embedding=False)


def test_rotary_positions_on_three_axes(ocr, model):
    ocr.check_rotary_axes(model, "pair")


def loss_of(ocr, model):
    losses, count = ocr.token_losses(model, "pair")
    return losses.sum() / count


@pytest.mark.usefixtures("padding_of_the_reference")
@pytest.mark.parametrize("granularity", ["none", "full"])
def test_loss_and_gradients(granularity, ocr, model, public_gradients):
    model.train()
    model.set_recompute(granularity)
    loss = loss_of(ocr, model)
    assert float(loss) == pytest.approx(ocr.numbers["loss"]["pair"], rel=1e-6)
    loss.backward()
    found = public_gradients(plugin, model)
    ocr.check_gradients(found, atol=1e-6)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("case", ["gen_image", "gen_pair"])
def test_greedy_answers(case, cached, ocr, model, cache):
    tokens, logits = answer(ocr, case, model, cache if cached else None)
    np.testing.assert_array_equal(tokens, ocr.tensors[f"{case}.new_tokens"])
    np.testing.assert_allclose(logits, ocr.tensors[f"{case}.logits"], atol=2e-5, rtol=0)


def answer(ocr, case, model, cache):
    """16 tokens, each the likeliest; images are seen in the first pass, or without a cache in every pass."""
    names = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")
    given = {name: paddle.to_tensor(ocr.tensors[f"{case}.{name}"]) for name in names}
    given["position_ids"], following = model.positions(**given)
    tokens, logits = [], []
    for step in range(16):
        with paddle.no_grad():
            last = model(**given, cache=cache)[:, -1]
        token = last.argmax(axis=-1, keepdim=True)
        tokens.append(token.numpy())
        logits.append(last.numpy())
        place = (following + step).reshape([-1, 1, 1]).expand([-1, 1, 3])
        mask = paddle.concat([given["attention_mask"], paddle.ones_like(token)], axis=1)
        if cache is not None:
            given = {"input_ids": token, "position_ids": place, "attention_mask": mask}
            continue
        ids = paddle.concat([given["input_ids"], token], axis=1)
        positions = paddle.concat([given["position_ids"], place], axis=1)
        given = {**given, "input_ids": ids, "position_ids": positions, "attention_mask": mask}
    return np.concatenate(tokens, axis=1), np.stack(logits, axis=1)


def test_videos_are_refused(ocr, model):
    given = ocr.inputs("image")
    grid = given["image_grid_thw"] * paddle.to_tensor([2, 1, 1])
    video = {"pixel_values_videos": given["pixel_values"].tile([2, 1, 1, 1]), "video_grid_thw": grid}
    ids = paddle.where(given["input_ids"] == 504, paddle.full_like(given["input_ids"], 505), given["input_ids"])
    with pytest.raises(ValueError, match="images, not videos"):
        model(ids, **video)
