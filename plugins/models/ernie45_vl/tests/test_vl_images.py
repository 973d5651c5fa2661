"""Image preprocessing against the stored reference in tests/fixtures/models/preprocess."""

import json

import numpy as np
import pytest
from erniecore_ernie45_vl.images import Sizing, patches, read_images, read_videos, resized, smart_size
from erniecore_media import to_rgb
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import load_file

NAMES = ("rgb_130x90", "grey_61x147", "rgba_84x56")


@pytest.fixture(scope="module")
def stored(models_dir):
    return load_file(models_dir / "preprocess" / "golden.safetensors")


@pytest.fixture(scope="module")
def tables(models_dir):
    return json.loads((models_dir / "preprocess" / "golden.json").read_text())["smart_resize"]


@pytest.mark.parametrize("name", NAMES)
def test_size_and_grid(name, stored, models_dir):
    pixels = read_images([models_dir / "preprocess" / f"{name}.png"])
    np.testing.assert_array_equal(pixels.grids, stored[f"{name}.ernie_vl.image_grid_thw"])
    assert pixels.values.dtype == np.float32
    assert pixels.tokens == [len(pixels.values) // 4]


@pytest.mark.parametrize("name", NAMES)
def test_resized_image(name, stored, models_dir):
    """Exact with the Pillow that made it, a grey level apart with others."""
    golden = stored[f"{name}.ernie_vl.resized_uint8"]
    found = resized(to_rgb(Image.open(models_dir / "preprocess" / f"{name}.png")), golden.shape[:2])
    assert np.abs(found.astype(int) - golden.astype(int)).max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_patches_of_the_resized_image(name, stored):
    found = patches(stored[f"{name}.ernie_vl.resized_uint8"][None], Sizing())
    np.testing.assert_allclose(found, stored[f"{name}.ernie_vl.pixel_values"], atol=1e-5, rtol=0)


def test_images_stand_one_after_the_other(models_dir, stored):
    files = [models_dir / "preprocess" / f"{name}.png" for name in NAMES]
    together, apart = read_images(files), [read_images([file]) for file in files]
    np.testing.assert_array_equal(together.values, np.concatenate([one.values for one in apart]))
    np.testing.assert_array_equal(together.grids, np.concatenate([one.grids for one in apart]))


def table_of(tables, start):
    return next(rows for title, rows in tables.items() if title.startswith(start))


@pytest.mark.parametrize(
    ("title", "sizing"),
    [
        ("ernie_vl_paddle_derived (factor 28, min 3136, max 6177*784)", Sizing()),
        ("ernie_vl_reference (factor 28, min 3136, max 6177*784)", Sizing()),
        ("ernie_vl_reference (factor 28, min 3136, max 1280*784)", Sizing(most=1280 * 784)),
        ("ernie_vl_video_reference", Sizing().of_video()),
    ],
)
def test_sizes(title, sizing, tables):
    """The published code squeezes what the other reference refuses, and never lets a side vanish before it counts."""
    derived = "derived" in title
    for height, width, expected in table_of(tables, title):
        if derived or (expected != "ValueError" and min(height, width) > 14):
            assert list(smart_size(height, width, sizing)) == expected, (height, width)


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_every_size_is_of_whole_squares_inside_the_limits(height, width):
    sizing = Sizing()
    rows, columns = smart_size(height, width, sizing)
    assert rows % 28 == columns % 28 == 0
    assert sizing.fewest <= rows * columns <= sizing.most


def test_limits_that_no_size_meets():
    with pytest.raises(ValueError, match="no size between"):
        smart_size(100, 100, Sizing(fewest=3137, most=3140))


def test_frames_are_paired():
    frames = [Image.new("RGB", (560, 560), (shade, 0, 0)) for shade in (0, 100, 200)]
    video = read_videos([frames])
    assert video.grids.tolist() == [[4, 40, 40]]
    third, last = video.values.reshape(4, 1600, -1)[2:]
    np.testing.assert_array_equal(third, last)


def test_frames_of_several_sizes_are_refused():
    with pytest.raises(ValueError, match="one size"):
        read_videos([[Image.new("RGB", (56, 56)), Image.new("RGB", (84, 56))]])
    with pytest.raises(ValueError, match="none"):
        read_videos([[]])


def test_sixteen_bits_of_grey_become_eight():
    wide = Image.fromarray(np.array([[0, 256, 65535]], np.uint16))
    assert np.asarray(to_rgb(wide))[0, :, 0].tolist() == [0, 1, 255]


def test_what_is_transparent_becomes_white():
    assert np.asarray(to_rgb(Image.new("LA", (1, 1), (0, 0)))).tolist() == [[[255, 255, 255]]]
