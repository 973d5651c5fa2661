"""The usage of experts on texts, for ``ernie extract --data``: the model computes layer by layer, with one layer in memory at a
time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_quantize.calibration import read_rows

from erniecore.api.model import DecoderShape, ElasticSizes
from erniecore.api.run import load_bundle
from erniecore_elastic.measuring import expert_weights_by_layer


def measured_usage(
    directory: Path, call: Callable[..., Any], sizes: ElasticSizes, files: Sequence[str], method: str, max_seq_len: int
) -> list[list[float]]:
    """Per row (layers, then MTP layers, which do not run and count nothing) the weights with which tokens of ``files`` go to
    each expert."""
    bundle = load_bundle(directory, empty=True).bundle
    batches = read_rows(files, method, bundle, max_seq_len).batches(max_seq_len)
    found = iter(expert_weights_by_layer(bundle.model, batches))
    shape: DecoderShape = call("ernie_decoder_shape", architecture=bundle.architecture)
    none = np.zeros(sizes.experts, np.float32)
    rows = [next(found) if layer.experts else none for layer in shape.layers]
    return [row.tolist() for row in [*rows, *[none] * (sizes.rows - len(rows))]]
