"""Corrupted history: bits of images that enter later scales with the wrong sign in training, so that the model learns to correct
mistakes such as it makes itself. What is flipped is a pure function of the step's seed and the image, so neither the number of
ranks nor micro-batches, packing or order change it. numpy only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from erniecore_ernie5.image_tokens import ImageTokens
from erniecore_ernie5.sequence import DRAWN
from erniecore_sampler.order import generator

from erniecore.api.method import Batch


def corrupted(batch: Batch, image: ImageTokens, flip_rate: float, seed: int) -> Batch:
    """The batch with other histories, and bits that correct them; the images as they are read stay."""
    values, bits = batch.fields["values"].copy(), batch.fields["bits"].copy()
    for row, where in images_of(batch, image):
        right = bits[row, where]
        name = hashlib.blake2b(right.tobytes(), digest_size=16).hexdigest()
        rng = generator(seed, f"flips-{name}")
        flips = rng.random(right.shape) < rng.random() * flip_rate
        pyramid = image.encode(image.rounded(image.decode(right)), flips)
        values[row, where], bits[row, where] = pyramid.inputs, pyramid.bits
    return replace(batch, fields={**batch.fields, "values": values, "bits": bits})


def images_of(batch: Batch, image: ImageTokens) -> Iterator[tuple[int, slice]]:
    """Row and columns of the tokens of all scales of each image that is drawn."""
    kinds, scales = batch.fields["kinds"], batch.fields["scales"]
    joined = batch.fields["joined"]
    for row, start in np.argwhere((kinds == DRAWN) & (scales == 0) & (joined == 0)):
        yield int(row), slice(int(start), int(start) + image.num_tokens)
