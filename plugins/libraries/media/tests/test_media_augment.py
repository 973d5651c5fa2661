"""Random changes of images: what each does to pixels, and what is drawn for a key."""

import numpy as np
import pytest
from erniecore_media.augment import TRANSFORMS, Change, Transform, augment, draw
from PIL import Image

SIDE = 56
#: values with which a transform changes nothing
NEUTRAL = {
    "rotate": (0,),
    "shear": (0,),
    "scale": (1,),
    "crop": (0, 0, 0, 0),
    "perspective": (0,) * 8,
    "brightness": (1,),
    "contrast": (1,),
    "saturation": (1,),
    "sharpness": (1,),
    "blur": (0,),
    "noise": (0,),
    "downscale": (1,),
}
#: values with which it does
STRONG = {
    "rotate": (10,),
    "shear": (10,),
    "scale": (1.3,),
    "crop": (0.1, 0.2, 0, -0.1),
    "perspective": (0.1, 0, 0, 0.2, 0.1, 0.1, 0, 0),
    "brightness": (0.5,),
    "contrast": (1.5,),
    "saturation": (0.2,),
    "sharpness": (3,),
    "hue": (0.3,),
    "blur": (2,),
    "noise": (20,),
    "jpeg": (10,),
    "downscale": (0.3,),
    "grayscale": (),
    "invert": (),
    "horizontal_flip": (),
}


def photo(width=SIDE + 28, height=SIDE):
    """Soft colors with a bright square left of the middle."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows * 2, columns * 2, 120 + rows - columns], -1) + np.random.default_rng(0).integers(
        0, 9, (height, width, 3)
    )
    pixels[height // 3 : height // 2, width // 6 : width // 3] = (250, 30, 30)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def made(name, *values, image=None, seed=1):
    return np.asarray(augment(image or photo(), [Change(name, values, seed)]))


def test_every_transform_is_tried_here():
    assert STRONG.keys() == TRANSFORMS.keys()
    assert {name: len(values) for name, values in STRONG.items()} == {n: k.values for n, k in TRANSFORMS.items()}


@pytest.mark.parametrize("name", STRONG)
def test_an_image_changes_and_keeps_its_size(name):
    changed = augment(photo(), [Change(name, STRONG[name], 1)])
    assert (changed.mode, changed.size) == ("RGB", photo().size)
    assert np.abs(np.asarray(changed).astype(int) - np.asarray(photo())).max() > 10


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_values_change_no_pixel(name):
    np.testing.assert_array_equal(made(name, *NEUTRAL[name]), np.asarray(photo()))


@pytest.mark.parametrize("size", [(28, 28), (2800, 28), (1, 1)])
@pytest.mark.parametrize("name", STRONG)
def test_the_smallest_and_the_longest_images_keep_their_size(name, size):
    assert augment(photo(*size), [Change(name, STRONG[name], 1)]).size == size


def test_a_crop_of_half_an_image_is_that_half_enlarged():
    image = Image.fromarray(np.repeat(np.repeat(np.array([[[10] * 3, [200] * 3]], np.uint8), 40, 0), 40, 1))
    left, right = made("crop", 0.0, 0.0, 0.5, 0.0, image=image), made("crop", 0.5, 0.0, 0.0, 0.0, image=image)
    assert (left[:, :74] == 10).all()  # interpolation reaches over the cut
    assert (right[:, 6:] == 200).all()


def test_margins_have_the_color_of_the_border():
    pixels = np.full((40, 40, 3), 200, np.uint8)
    pixels[1:-1, 1:-1] = 10
    wide = made("crop", -0.5, -0.5, -0.5, -0.5, image=Image.fromarray(pixels))
    assert (wide[:8] == 200).all()
    assert (wide[15:25, 15:25] == 10).all()


def test_corners_go_inward_and_nothing_is_cut_off():
    """The colors of four quarters, each found where its quarter goes."""
    pixels = np.zeros((80, 80, 3), np.uint8)
    for i, (row, column) in enumerate(((0, 0), (0, 40), (40, 40), (40, 0))):
        pixels[row : row + 40, column : column + 40] = 60 * (i + 1)
    changed = made("perspective", 0.25, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, image=Image.fromarray(pixels))
    border = round(float(np.mean([60, 120, 180, 240])))
    assert abs(int(changed[2, 2, 0]) - border) <= 1  # the upper left corner has come inward
    assert [int(changed[place][0]) for place in ((26, 26), (4, 74), (76, 76), (74, 4))] == [60, 120, 180, 240]


@pytest.mark.parametrize(
    "change", [("rotate", 3.0), ("rotate", -8.0), ("rotate", 90.0), ("shear", 20.0), ("shear", -5.0)]
)
def test_a_line_of_text_stays_whole_when_it_turns(change):
    """Marks in the corners of a line ten times as long as high."""
    colors = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (0, 0, 0)]
    line = np.full((56, 560, 3), 255, np.uint8)
    for color, (row, column) in zip(colors, ((0, 0), (0, 536), (32, 0), (32, 536)), strict=True):
        line[row : row + 24, column : column + 24] = color
    turned = made(*change, image=Image.fromarray(line)).astype(int)
    for color in colors:
        assert np.abs(turned - color).max(axis=-1).min() < 30, color


def test_images_turn_counterclockwise():
    pixels = np.full((56, 56, 3), 255, np.uint8)
    pixels[:, 40:] = 0
    quarter = made("rotate", 90.0, image=Image.fromarray(pixels))
    assert quarter[8].max() < 20
    assert quarter[40].min() > 235


def test_a_turn_of_the_hue_by_a_third_makes_red_green():
    red = Image.new("RGB", (28, 28), (255, 0, 0))
    changed = made("hue", 1 / 3, image=red)[0, 0].astype(int)
    assert changed[1] == 255
    assert max(changed[0], changed[2]) <= 8


def test_noise_is_that_of_its_seed_and_as_strong_as_said():
    gray = Image.new("RGB", (200, 200), (128, 128, 128))
    first, again, other = (made("noise", 12.0, image=gray, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert abs(float((first.astype(float) - 128).std()) - 12) < 0.3


def test_what_is_drawn_is_a_function_of_the_key():
    transforms = [Transform("rotate", 0.5, -3, 3), Transform("jpeg", 0.5, 40, 95)]
    keys = [str(i) for i in range(2000)]
    found = [draw(transforms, key) for key in keys]
    assert found == [draw(transforms, key) for key in keys]
    angles = [change.values[0] for changes in found for change in changes if change.name == "rotate"]
    assert abs(len(angles) / len(keys) - 0.5) < 0.05
    assert -3 <= min(angles) < -2.9 < 2.9 < max(angles) <= 3
    both = sum(len(changes) == 2 for changes in found)
    assert abs(both / len(keys) - 0.25) < 0.05  # independent of each other


def test_another_probability_leaves_the_other_transforms_as_they_are():
    often, never = (draw([Transform("rotate", p, -3, 3), Transform("noise", 1.0, 0, 5)], "a")[-1] for p in (1.0, 0.0))
    assert often == never


def test_changes_say_what_they_do():
    assert str(Change("rotate", (-1.2345,), 7)) == "rotate -1.23"
    assert str(Change("grayscale", (), 7)) == "grayscale"
