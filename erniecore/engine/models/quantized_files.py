"""Writing a model directory with quantized weights: quantized values and scales as the quantizer stores them, other tensors in
the dtype of the source. A model that is there is written at once, an empty one layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from erniecore_checkpoint.directories import atomic_directory, write_directory_manifest
from erniecore_checkpoint.safetensors_write import (
    DEFAULT_SHARD_BYTES,
    SafetensorsFile,
    WrittenFile,
    WrittenTensor,
    shard_files,
    write_shards,
)
from erniecore_checkpoint.tensors import DTYPES, SHORT_NAMES, Array
from erniecore_checkpoint.tensors import Tensor as Stored

from erniecore.engine.models.config_json import quantized_by
from erniecore.errors import CheckpointError
from erniecore.types.model import ModelBundle
from erniecore.types.records import Json

if TYPE_CHECKING:
    from erniecore.plugin import Plugin
    from erniecore.sections import Section
    from erniecore.types.model import Tensor


class Unfinished(Protocol):
    """A directory that is being written. ``files``: name of a finished file -> its record, with ``bytes`` and ``sha256``."""

    directory: Path
    files: dict[str, dict[str, Any]]

    def finish(self, name: str, record: Mapping[str, Any]) -> None:
        """The file ``name`` is on the disk."""


def write_quantized(bundle: ModelBundle, out: Path, plugin: Plugin, config: Section, dtype: str) -> int:
    """Write ``bundle``, whose model ``plugin`` has packed with ``config``, to ``out``, whole or not at all, and load it again
    to compare; returns the bytes of the weights. ``dtype``: of parameters that are not packed.

    Raises:
        CheckpointError: the target is not free, or what was written differs.
    """
    bundle = _described(bundle, plugin, config)
    tensors = _tensors(bundle, dtype)
    with atomic_directory(out) as target:
        _finish(bundle, target, dtype, write_shards(target, "weights", tensors, DEFAULT_SHARD_BYTES))
        _compare(bundle, target)
    return sum(tensor.num_bytes for tensor in tensors.values())


def write_by_layer(
    bundle: ModelBundle,
    progress: Unfinished,
    plugin: Plugin,
    config: Section,
    dtype: str,
    each: Callable[[str], Json],
    max_shard_bytes: int = 0,
) -> int:
    """As :func:`write_quantized`, into an unfinished directory, layer by layer: of an empty model a layer is filled, packed,
    written and forgotten before the next. Files that an earlier process finished stay as they are. The bytes of a file are
    read again once it is written.

    Args:
        each: told the name of every layer or expert matrix whose tensors have values now; what it returns, if anything, is
            kept in the record of the file, under that name in ``layers``.
        max_shard_bytes: of a file; 0: the usual size.
    """
    from erniecore.engine.models.weights import state_of

    bundle = _described(bundle, plugin, config)
    tensors, written = _tensors(bundle, dtype), list[WrittenFile]()
    for name, names in shard_files(tensors, "weights", max_shard_bytes or DEFAULT_SHARD_BYTES):
        shard = {tensor: tensors[tensor] for tensor in names}
        if name not in progress.files:
            layers = dict[str, Json]()
            file = _write_shard(progress.directory / name, shard, state_of(bundle.model), each, layers)
            progress.finish(name, {"bytes": file.num_bytes, "sha256": file.sha256, "layers": layers})
        record = progress.files[name]
        found = {t: WrittenTensor(tensor.dtype, tensor.shape, 0, 0, "") for t, tensor in shard.items()}
        written.append(WrittenFile(name, record["bytes"], record["sha256"], found))
    _finish(bundle, progress.directory, dtype, written)
    return sum(tensor.num_bytes for tensor in tensors.values())


def _write_shard(
    path: Path,
    tensors: Mapping[str, Stored],
    state: Mapping[str, Tensor],
    each: Callable[[str], Json],
    layers: dict[str, Json],
) -> WrittenFile:
    """One file, a layer at a time, whose tensors are then without values again."""
    from erniecore.engine.models.filling import emptied_after

    file = SafetensorsFile(path, {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()})
    try:
        for layer, names in groupby(tensors, lambda name: name.rpartition(".")[0]):
            own = list(names)
            with emptied_after(state[name] for name in own):
                for name in own:
                    file.add(name, tensors[name])
                if said := each(layer):
                    layers[layer] = said
        return file.finish()
    finally:
        file.close()


def _described(bundle: ModelBundle, plugin: Plugin, config: Section) -> ModelBundle:
    architecture = quantized_by(bundle.architecture, plugin.name, config.model_dump(mode="json"))
    return replace(bundle, architecture=architecture, provenance={**bundle.provenance, "quantizer": plugin.name})


def _tensors(bundle: ModelBundle, dtype: str) -> dict[str, Stored]:
    """What is written, by our names, filled when it is asked for. ``dtype``: of parameters that are not packed."""
    from erniecore.engine import arrays
    from erniecore.engine.models.weights import state_of

    parameters = {name for name, _ in bundle.model.named_parameters()}
    kept = {entry.name: entry.dtype for entry in bundle.adapter.maps("pt") if entry.dtype}

    def stored(name: str, tensor: Tensor) -> Stored:
        wanted = (kept.get(name) or dtype if name in parameters else "") or arrays.dtype_name(tensor)
        return Stored(SHORT_NAMES[wanted], tuple(tensor.shape), lambda: _values(tensor, wanted, name))

    return {name: stored(name, tensor) for name, tensor in state_of(bundle.model).items()}


def _values(tensor: Tensor, dtype: str, name: str) -> Array:
    """``tensor`` in ``dtype``, in its own memory if it can be; straight from its file where that has this dtype."""
    from erniecore_ops.parallel import memory_of, parallel_map
    from erniecore_ops.written_values import write_values

    from erniecore.engine import arrays
    from erniecore.engine.models.filling import filled, stored_parts
    from erniecore.engine.models.model_files import converted

    found = stored_parts(tensor)
    if found is None or found[0] != dtype:
        if dtype in ("int8", "float32") and arrays.dtype_name(filled(tensor)) == dtype and arrays.on_host():
            return memory_of(tensor.detach())
        return converted(filled(tensor), dtype, name)
    own, at = np.empty(tensor.shape, DTYPES[SHORT_NAMES[dtype]]), 0
    for part in found[1]:
        write_values(own[at : at + len(part)], part, lambda some: (some, True), partial(parallel_map, like=own))
        at += len(part)
    return own


def _finish(bundle: ModelBundle, directory: Path, dtype: str, written: Sequence[WrittenFile]) -> None:
    """Everything but the weights."""
    from erniecore.engine.models.model_files import provenance, write_assets

    write_assets(bundle, directory, dtype)
    facts = {**provenance(bundle, written), "layout": "quantized"}
    write_directory_manifest(directory, facts, {file.name: file.sha256 for file in written})


def _compare(bundle: ModelBundle, directory: Path) -> None:
    """Raises ``CheckpointError`` unless ``directory`` holds the same tensors, bit for bit."""
    from erniecore.engine import arrays
    from erniecore.engine.models.bundles import load_bundle
    from erniecore.engine.models.weights import state_of

    again = load_bundle(directory, tokenizer=False).bundle
    found = state_of(again.model)
    for name, tensor in state_of(bundle.model).items():
        if arrays.to_numpy(found[name]).tobytes() != arrays.to_numpy(tensor).tobytes():
            raise CheckpointError("the quantized model reads back differently", where=f"{directory}: {name}")
