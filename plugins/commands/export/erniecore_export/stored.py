"""A model whose weights stay in their files: for exporters that take its public tensors one by one and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from erniecore.api import CheckpointError
from erniecore.api.export import StateAdapter, TensorMap
from erniecore.api.files import read_object
from erniecore.api.installation import load
from erniecore.api.model_files import (
    LONG_NAMES,
    QUANTIZATION_KEY,
    SHORT_NAMES,
    Array,
    Checked,
    StoredTensor,
    check_finite,
    check_weights,
    convert,
    has_score,
    stored_as,
)
from erniecore.api.run import (
    Located,
    Opened,
    described_by,
    left_alone,
    open_located,
    plugin_for_directory,
    read_bundle,
    stored_dtype,
)


class StoredModel:
    """Stands for a model in a ``ModelBundle``; ``tensors``: public name, layout ``pt`` -> tensor as it is stored."""

    def __init__(self, tensors: Mapping[str, StoredTensor]) -> None:
        self.tensors = tensors

    def public_tensors(self, maps: Sequence[TensorMap], dtype: str) -> dict[str, StoredTensor]:
        """The tensors in the order of ``maps``, as ``dtype``; empty: as stored. Asked by ``model_files.public_tensors``."""
        found = {}
        for entry in maps:
            for name in entry.sources:
                tensor = self.tensors[name]
                own = LONG_NAMES[tensor.dtype]
                wanted = entry.dtype or dtype or own
                load = partial(_converted, tensor, own, wanted, name)
                found[name] = replace(tensor, dtype=SHORT_NAMES[wanted], load=load)
        return found

    def sublayers(self) -> list[Any]:
        """None: no layer was built, and so none is quantized."""
        return []

    def named_children(self) -> list[tuple[str, Any]]:
        """None: there is no codec of a KV cache either."""
        return []


def _converted(tensor: StoredTensor, found: str, wanted: str, name: str) -> Array:
    array = convert(tensor.load(), found, wanted, name)
    check_finite(array, wanted, name)
    return array


def open_stored(located: Located) -> Opened:
    """As ``open_located``, but the weights of a model directory stay in their files (:class:`StoredModel`). What has to be
    built to be read is built: checkpoints, quantized and scoring models.
    """
    directory = located.path
    config = {} if located.is_checkpoint else read_object(directory / "config.json", CheckpointError, code="ERN-K021")
    if located.is_checkpoint or QUANTIZATION_KEY in config or has_score(config):
        return open_located(located, plain=True)
    plugin = load("model", plugin_for_directory(directory))
    bundle, notes, _ = read_bundle(plugin, {"path": str(directory)}, directory)
    model, ignored = stored_model(directory, bundle.architecture, bundle.adapter)
    bundle = described_by(directory, replace(bundle, model=model))
    notes = [*located.notes, *notes, *left_alone(ignored)]
    return Opened(bundle, stored_dtype(directory), notes)


def stored_model(
    directory: Path, architecture: Mapping[str, Any], adapter: StateAdapter
) -> tuple[StoredModel, tuple[str, ...]]:
    """The model in ``directory``, and public tensors there that are no part of it.

    Raises:
        CheckpointError: files missing or damaged, tensors missing, unexpected or of another shape.
    """
    checked = check_weights(directory, architecture, adapter)
    written = adapter.maps("pt")
    if checked.layout == "pt":
        tensors = {name: checked.stored[name][1] for entry in written for name in entry.sources}
    else:
        tensors = _from_other_layout(checked, written)
    return StoredModel(tensors), checked.ignored


def _from_other_layout(checked: Checked, written: Sequence[TensorMap]) -> dict[str, StoredTensor]:
    """Our tensors are loaded as the layout has them, and stored as public ones."""
    read = {entry.name: entry for entry in checked.maps}

    def parts_of(entry: TensorMap) -> list[StoredTensor]:
        return [checked.stored[name][1] for name in read[entry.name].sources]

    def dtype_of(entry: TensorMap) -> str:
        return LONG_NAMES[parts_of(entry)[0].dtype]

    return stored_as(written, dtype_of, lambda entry: read[entry.name].load([part.load() for part in parts_of(entry)]))
