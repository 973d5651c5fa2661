"""Image preprocessing against the stored reference in tests/fixtures/models/preprocess, and its file in model directories."""

import hashlib
import json

import numpy as np
import pytest
from erniecore_ernie45_vl.images import read_images
from erniecore_paddleocr_vl.config import OcrConfig
from erniecore_paddleocr_vl.images import OcrSizing, described, read_sizing
from safetensors.numpy import load_file

from erniecore.api import EnvironmentFault

NAMES = ("rgb_130x90", "grey_61x147", "rgba_84x56")
SMALL = OcrSizing(fewest=56 * 56, most=112 * 112)


@pytest.fixture(scope="module")
def stored(models_dir):
    return load_file(models_dir / "preprocess" / "golden.safetensors")


@pytest.fixture(scope="module")
def numbers(models_dir):
    return json.loads((models_dir / "preprocess" / "golden.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_small_images(name, stored, models_dir):
    pixels = read_images([models_dir / "preprocess" / f"{name}.png"], SMALL)
    np.testing.assert_array_equal(pixels.grids, stored[f"{name}.ocr_small.image_grid_thw"])
    golden = stored[f"{name}.ocr_small.pixel_values"]
    np.testing.assert_allclose(pixels.values.reshape(golden.shape), golden, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_limits_of_the_published_model(name, stored, numbers, models_dir):
    pixels = read_images([models_dir / "preprocess" / f"{name}.png"], OcrSizing())
    np.testing.assert_array_equal(pixels.grids, stored[f"{name}.ocr_hub.image_grid_thw"])
    values = pixels.values.reshape(numbers["images"][name]["ocr_hub"]["shape"])
    for part, found in (("first_patches", values[:4]), ("last_patches", values[-2:])):
        np.testing.assert_allclose(found, stored[f"{name}.ocr_hub.{part}"], atol=1e-6, rtol=0)
    assert values.mean(dtype=np.float64) == pytest.approx(numbers["images"][name]["ocr_hub"]["mean"], abs=1e-6)
    assert hashlib.sha256(values.tobytes()).hexdigest() == numbers["images"][name]["ocr_hub"]["sha256_le_f32"]


@pytest.mark.parametrize(
    ("title", "sizing"),
    [("class_default", OcrSizing(fewest=384 * 384, most=1536 * 1536)), ("reference_hub", OcrSizing())],
)
def test_sizes(title, sizing, numbers):
    table = next(rows for name, rows in numbers["smart_resize"].items() if f"ocr_{title}" in name or title in name)
    assert len(table) > 10
    for height, width, expected in table:
        if expected == "ValueError":
            with pytest.raises(ValueError, match="200 times"):
                sizing.size_of(height, width)
        else:
            assert list(sizing.size_of(height, width)) == expected, (height, width)


def test_sizes_are_those_of_the_directory_unless_settings_say_otherwise(tmp_path):
    assert read_sizing(tmp_path, OcrConfig()) == OcrSizing()
    made = OcrSizing(fewest=1000, most=5000, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described(made)))
    assert read_sizing(tmp_path, OcrConfig()) == made
    assert read_sizing(tmp_path, OcrConfig(image_max_pixels=4000)).most == 4000
    newer = {"size": {"shortest_edge": 784, "longest_edge": 7840}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(newer))
    assert read_sizing(tmp_path, OcrConfig()) == OcrSizing(fewest=784, most=7840)


@pytest.mark.parametrize(
    "wrong", [{"min_pixels": "x"}, {"max_pixels": 3}, {"image_std": [0, 1, 1]}, {"image_mean": [1]}]
)
def test_a_damaged_file_is_refused_at_its_key(wrong, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(wrong))
    with pytest.raises(EnvironmentFault) as error:
        read_sizing(tmp_path, OcrConfig())
    assert error.value.where.endswith(f"preprocessor_config.json: {next(iter(wrong))}")
