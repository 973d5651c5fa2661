"""Writing a model directory with quantized weights: quantized values and scales as the quantizer stores them, other tensors in
the dtype of the source; loaded again and compared bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.checkpoint.directories import atomic_directory, write_directory_manifest
from erniecore.engine.models.config_json import quantized_by
from erniecore.errors import CheckpointError
from erniecore.types.model import ModelBundle

if TYPE_CHECKING:
    from erniecore.checkpoint.tensors import Tensor as Stored
    from erniecore.plugin import Plugin
    from erniecore.sections import Section
    from erniecore.types.model import Tensor


def write_quantized(bundle: ModelBundle, out: Path, plugin: Plugin, config: Section, dtype: str) -> int:
    """Write ``bundle``, whose model ``plugin`` has packed with ``config``, to ``out``, whole or not at all, and load it again
    to compare; returns the bytes of the weights. ``dtype``: of parameters that are not packed.

    Raises:
        CheckpointError: the target is not free, or what was written differs.
    """
    architecture = quantized_by(bundle.architecture, plugin.name, config.model_dump(mode="json"))
    provenance = {**bundle.provenance, "quantizer": plugin.name}
    bundle = replace(bundle, architecture=architecture, provenance=provenance)
    with atomic_directory(out) as target:
        num_bytes = _write(bundle, target, dtype)
        _verify(bundle, target)
    return num_bytes


def _write(bundle: ModelBundle, directory: Path, dtype: str) -> int:
    """The files; bytes of the weights. ``dtype``: of parameters that are not packed."""
    from erniecore.checkpoint.safetensors_write import DEFAULT_SHARD_BYTES, write_shards
    from erniecore.engine.models.model_files import provenance, write_assets
    from erniecore.engine.models.weights import state_of

    parameters = {name for name, _ in bundle.model.named_parameters()}
    kept = {entry.name: entry.dtype for entry in bundle.adapter.maps("pt") if entry.dtype}
    tensors = {
        name: _stored(tensor, (kept.get(name) or dtype) if name in parameters else "", name)
        for name, tensor in state_of(bundle.model).items()
    }
    written = write_shards(directory, "weights", tensors, DEFAULT_SHARD_BYTES)
    write_assets(bundle, directory, dtype)
    facts = {**provenance(bundle, written), "layout": "quantized"}
    write_directory_manifest(directory, facts, {file.name: file.sha256 for file in written})
    return sum(tensor.num_bytes for tensor in tensors.values())


def _stored(tensor: Tensor, dtype: str, name: str) -> Stored:
    """``tensor`` for the writer; ``dtype`` empty: as it is."""
    from erniecore.checkpoint.tensors import LONG_NAMES, Tensor
    from erniecore.engine import arrays
    from erniecore.engine.models.model_files import converted

    short = {long: short for short, long in LONG_NAMES.items()}
    wanted = dtype or arrays.dtype_name(tensor)
    return Tensor(short[wanted], tuple(tensor.shape), partial(converted, tensor, wanted, name))


def _verify(bundle: ModelBundle, directory: Path) -> None:
    """Raises ``CheckpointError`` unless ``directory`` holds the same tensors, bit for bit."""
    from erniecore.engine import arrays
    from erniecore.engine.models.bundles import load_bundle
    from erniecore.engine.models.weights import state_of

    again = load_bundle(directory, tokenizer=False).bundle
    found = state_of(again.model)
    for name, tensor in state_of(bundle.model).items():
        if arrays.to_numpy(found[name]).tobytes() != arrays.to_numpy(tensor).tobytes():
            raise CheckpointError("the quantized model reads back differently", where=f"{directory}: {name}")
