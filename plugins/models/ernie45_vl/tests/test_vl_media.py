"""Positions of text and images, images of several sizes beside each other, refused inputs, and text without any."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_ernie45_moe.plugin import plugin as text_plugin
from erniecore_ernie45_vl.architecture import Markers
from erniecore_ernie45_vl.plugin import plugin
from erniecore_ernie45_vl.positions import (
    IMAGE,
    VIDEO,
    Grid,
    kinds_of,
    patch_places,
    read_grids,
    token_positions,
)
from hypothesis import given, settings
from hypothesis import strategies as st

SIZE = {"image": (IMAGE, st.just(1)), "video": (VIDEO, st.sampled_from([2, 4, 8, 14]))}


@pytest.fixture(scope="module")
def vl(golden):
    return golden("vl_moe")


@pytest.fixture(scope="module")
def model(vl, build):
    model = build(plugin, vl.config, vl.weights)
    model.eval()
    return model


@st.composite
def rows(draw):
    """A row of text and images: kinds of its tokens, and the grids."""
    kinds, grids = [], {IMAGE: [], VIDEO: []}
    for _ in range(draw(st.integers(0, 3))):
        kinds += [0] * draw(st.integers(1, 4))
        kind, frames = SIZE[draw(st.sampled_from(sorted(SIZE)))]
        grid = Grid(draw(frames), 2 * draw(st.integers(1, 4)), 2 * draw(st.integers(1, 4)))
        grids[kind].append(grid)
        kinds += [kind] * grid.merged(2).size
    return kinds + [0] * draw(st.integers(1, 4)), grids


@settings(deadline=None, max_examples=60)
@given(rows(), st.integers(0, 3))
def test_positions_never_go_back_and_text_goes_on_after_the_largest(row, padding):
    kinds, grids = row
    kinds_1S = np.array([[0] * padding + kinds])
    real_1S = np.arange(kinds_1S.shape[1])[None] >= padding
    positions, following = token_positions(kinds_1S, grids, 2, real_1S)
    largest = -1
    for kind, place in zip(kinds, positions[0, padding:], strict=True):
        if kind == 0:
            assert place.tolist() == [largest + 1] * 3
        largest = max(largest, *place)
    assert following[0] == largest + 1
    assert not positions[0, :padding].any()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_every_patch_has_its_place_once_and_squares_are_together(rows, columns, frames):
    places = patch_places([Grid(frames, 2 * rows, 2 * columns)], 2)
    assert {tuple(p) for p in places.tolist()} == {(r, c) for r in range(2 * rows) for c in range(2 * columns)}
    assert len(places) == frames * 4 * rows * columns
    squares = places.reshape(-1, 4, 2)
    assert (squares // 2 == squares[:, :1] // 2).all()


def test_images_of_other_rows_change_nothing(vl, model):
    """Three images of different sizes in two left-padded rows, against the second row by itself."""
    given = {name: vl.tensors[f"two_images.{name}"] for name in vl.numbers["batches"]["two_images"]}
    patches = given["image_grid_thw"].prod(axis=1)
    counts = [(row == 1).sum() * 4 for row in given["mm_token_type_ids"]]
    first = int(np.searchsorted(patches.cumsum(), counts[0])) + 1
    start = int(given["attention_mask"][1].argmax())
    alone = {
        "input_ids": given["input_ids"][1:, start:],
        "pixel_values": given["pixel_values"][counts[0] :],
        "image_grid_thw": given["image_grid_thw"][first:],
    }
    together = model(**tensors(given)).numpy()[1, start:]
    np.testing.assert_allclose(model(**tensors(alone)).numpy()[0], together, atol=1e-5, rtol=0)


def tensors(arrays):
    return {name: paddle.to_tensor(array) for name, array in arrays.items()}


def image(vl, **changes):
    return tensors({**{name: vl.tensors[f"image.{name}"] for name in vl.numbers["batches"]["image"]}, **changes})


def drop(given, name):
    return {key: value for key, value in given.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: drop(g, "image_grid_thw"), "image_grid_thw belong together"),
        (lambda g: {**g, "image_grid_thw": g["image_grid_thw"] * 0 + 2}, "expected 1 frame"),
        (lambda g: {**g, "pixel_values": g["pixel_values"][:-4]}, "the grids have 24 patches, the pixels 20"),
        (lambda g: {**g, "mm_token_type_ids": g["mm_token_type_ids"] * 0}, "an image is left over"),
        (lambda g: {**g, "mm_token_type_ids": g["mm_token_type_ids"] * 2}, "a video is missing"),
        (lambda g: {**g, "mm_token_type_ids": g["mm_token_type_ids"] * 0 + 1}, "an image is missing"),
    ],
)
def test_images_that_do_not_fit_are_refused(change, message, vl, model):
    with pytest.raises(ValueError, match=message):
        model(**change(image(vl)))


@pytest.mark.parametrize(
    ("grid", "kind", "message"),
    [((1, 3, 4), IMAGE, "multiples of 2"), ((3, 4, 4), VIDEO, "even number"), ((0, 4, 4), VIDEO, "even number")],
)
def test_grids_that_cannot_be_merged_are_refused(grid, kind, message):
    with pytest.raises(ValueError, match=message):
        read_grids([grid], kind, 2)


def test_one_placeholder_for_both_needs_the_kinds():
    with pytest.raises(ValueError, match="mm_token_type_ids"):
        kinds_of(np.zeros((1, 3)), Markers(5, 5, 1, 2, 3, 4))


def test_a_vocabulary_without_markers_sees_no_images(vl, build):
    small = build(plugin, {**vl.config, "text_config": {**vl.config["text_config"], "vocab_size": 64}})
    with pytest.raises(ValueError, match="no token for images: image is 504"):
        small(**image(vl))


def test_text_alone_is_the_text_model(vl, build, model):
    """Weights of text under the names of the text model give its logits and, in training, its router's statistics."""
    text = {key: value for key, value in model.architecture.items() if key not in ("vision_config", "rope_3d")}
    single = {key: value[0] for key, value in text.items() if isinstance(value, list) and key.startswith("moe_")}
    config = {**text, **single, "model_type": "ernie4_5_moe", "moe_num_shared_experts": 2}
    plain = build(text_plugin, config)
    own = model.state_dict()
    for name, tensor in plain.state_dict().items():
        value = own[name]
        tensor.set_value(value[:1] if name.endswith("e_score_correction_bias") else value)
    plain.eval()
    ids = paddle.to_tensor(vl.tensors["text.input_ids"])
    np.testing.assert_array_equal(model(ids).numpy(), plain(ids).numpy())


def test_biases_move_for_the_routers_that_are_trained(vl, build):
    model = build(plugin, vl.config, vl.weights)
    model.train()
    before = [block.moe_statics.e_score_correction_bias.numpy() for block in model.blocks()]
    for frozen, moved in ((True, [True, False]), (False, [True, True])):
        model.train_vision(not frozen)
        model.features(**image(vl))
        model.after_step()
        now = [block.moe_statics.e_score_correction_bias.numpy() for block in model.blocks()]
        for old, new in zip(before, now, strict=True):
            assert (old != new).any(axis=1).tolist() == moved
        before = now
