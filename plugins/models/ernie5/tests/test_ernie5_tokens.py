"""Images and tones come back from their tokens as they were."""

import numpy as np
import pytest
from erniecore_ernie5.audio_tokens import AudioTokens
from erniecore_ernie5.image_tokens import ImageTokens


@pytest.mark.parametrize(
    ("image", "colors"),
    [
        (ImageTokens(16, 4, (1, 2, 4)), 2),
        (ImageTokens(12, 2, (1, 2, 3, 6)), 2),
        (ImageTokens(16, 2, (1, 2, 4, 8, 8, 8), 4), 4),
    ],
)
def test_images_come_back_exactly(image, colors):
    assert not list(image.faults())
    rng = np.random.default_rng(0)
    for _ in range(20):
        pixels = np.rint(rng.integers(colors, size=(image.size, image.size, 3)) * 255 / (colors - 1)).astype(np.uint8)
        bits = image.encode(image.values(pixels)).bits
        assert bits.shape == (image.num_tokens, image.width)
        assert (image.pixels(image.decode(bits)) == pixels).all()


def test_later_bits_correct_a_corrupted_history():
    image, rng = ImageTokens(16, 4, (1, 2, 4)), np.random.default_rng(1)
    pixels = (rng.integers(2, size=(16, 16, 3)) * 255).astype(np.uint8)
    flips = rng.random((image.num_tokens, image.width)) < 0.3
    flips[-16:] = False
    pyramid = image.encode(image.values(pixels), flips)
    history = np.where(flips, -pyramid.bits, pyramid.bits)
    assert (image.pixels(image.decode(history)) == pixels).all()
    clean = image.encode(image.values(pixels))
    assert (pyramid.bits[:1] == clean.bits[:1]).all()
    assert (pyramid.inputs[1:] != clean.inputs[1:]).any()


def test_inputs_of_a_scale_know_the_scales_before_it_alone():
    image, rng = ImageTokens(16, 4, (1, 2, 4)), np.random.default_rng(2)
    values = image.values((rng.integers(2, size=(16, 16, 3)) * 255).astype(np.uint8))
    bits = image.encode(values).bits
    inputs = image.encode(values).inputs
    assert not inputs[:1].any()
    first = image.added(image.nothing(), 0, bits[:1])
    assert np.allclose(inputs[1:5], image.pooled(first, 2), atol=0)


@pytest.mark.parametrize(
    ("image", "key"),
    [
        (ImageTokens(16, 5, (1,)), "image_patch"),
        (ImageTokens(16, 4, (1, 2)), "image_scales"),
        (ImageTokens(16, 4, (1, 3, 4)), "image_scales"),
        (ImageTokens(16, 4, (1, 4), 4), "image_scales"),
    ],
)
def test_sizes_that_lose_something_are_named(image, key):
    assert [name for name, _ in image.faults()] == [key]


def test_sums_of_one_wave_per_level_come_back_exactly():
    audio, rng = AudioTokens(), np.random.default_rng(0)
    codes = np.zeros((50, 3), np.int16)
    for row in codes:
        notes, soft = rng.permutation(audio.notes)[:3], bool(rng.integers(2))
        row[:] = [audio.code(int(note), soft) for note in notes]
        row[rng.integers(1, 4) :] = 0
    found = audio.encode(audio.decode(codes))
    assert (found == codes).all()


def test_notes_are_told_apart_or_refused():
    assert not list(AudioTokens().faults())
    assert [name for name, _ in AudioTokens(frame=320).faults()] == ["audio_frame"]
    assert [name for name, _ in AudioTokens(notes=60).faults()] == ["audio_notes"]


def test_a_steady_tone_has_no_break_between_frames():
    audio = AudioTokens()
    wave = audio.decode(np.array([[audio.code(5), 0, 0]] * 3, np.int16))
    assert np.abs(np.diff(wave)).max() < 0.4 * 2 * np.pi * audio.waves()[5] / audio.frame * 1.01
