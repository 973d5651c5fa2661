"""A model whose weights stay in their files: for exporters that take its public tensors one by one and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_system.files import read_object

from erniecore import registry
from erniecore.checkpoint.tensors import LONG_NAMES, Array, Tensor
from erniecore.config.packed_base import QUANTIZATION
from erniecore.config.selection import plugin_for_directory
from erniecore.engine.models.config_json import has_score
from erniecore.errors import CheckpointError
from erniecore.types.model import StateAdapter, TensorMap

if TYPE_CHECKING:
    from erniecore.engine.models.bundles import Located, Opened
    from erniecore.engine.models.weights import Checked

_SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()}


class StoredModel:
    """Stands for a model in a ``ModelBundle``; ``tensors``: public name, layout ``pt`` -> tensor as it is stored."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors

    def public_tensors(self, maps: Sequence[TensorMap], dtype: str) -> dict[str, Tensor]:
        """The tensors in the order of ``maps``, as ``dtype``; empty: as stored. Asked by ``model_files.public_tensors``."""
        found = {}
        for entry in maps:
            for name in entry.sources:
                tensor = self.tensors[name]
                own = LONG_NAMES[tensor.dtype]
                wanted = entry.dtype or dtype or own
                load = partial(_converted, tensor, own, wanted, name)
                found[name] = replace(tensor, dtype=_SHORT_NAMES[wanted], load=load)
        return found

    def sublayers(self) -> list[Any]:
        """None: no layer was built, and so none is quantized."""
        return []

    def named_children(self) -> list[tuple[str, Any]]:
        """None: there is no codec of a KV cache either."""
        return []


def _converted(tensor: Tensor, found: str, wanted: str, name: str) -> Array:
    from erniecore.engine.models.weights import check_finite, convert

    array = convert(tensor.load(), found, wanted, name)
    check_finite(array, wanted, name)
    return array


def open_stored(located: Located) -> Opened:
    """As ``open_located``, but the weights of a model directory stay in their files (:class:`StoredModel`). What has to be
    built to be read is built: checkpoints, quantized and scoring models.
    """
    from erniecore.engine.models import bundles

    directory = located.path
    config = {} if located.is_checkpoint else read_object(directory / "config.json", CheckpointError, code="ERN-K021")
    if located.is_checkpoint or QUANTIZATION in config or has_score(config):
        return bundles.open_located(located, plain=True)
    plugin = registry.load("model", plugin_for_directory(directory))
    bundle, notes, _ = bundles.read_bundle(plugin, {"path": str(directory)}, directory)
    model, ignored = stored_model(directory, bundle.architecture, bundle.adapter)
    bundle = bundles.described_by(directory, replace(bundle, model=model))
    notes = [*located.notes, *notes, *bundles.left_alone(ignored)]
    return bundles.Opened(bundle, bundles.stored_dtype(directory), notes)


def stored_model(
    directory: Path, architecture: Mapping[str, Any], adapter: StateAdapter
) -> tuple[StoredModel, tuple[str, ...]]:
    """The model in ``directory``, and public tensors there that are no part of it.

    Raises:
        CheckpointError: files missing or damaged, tensors missing, unexpected or of another shape.
    """
    from erniecore.engine.models.weights import check_weights

    checked = check_weights(directory, architecture, adapter)
    written = adapter.maps("pt")
    if checked.layout == "pt":
        tensors = {name: checked.stored[name][1] for entry in written for name in entry.sources}
    else:
        tensors = _from_other_layout(checked, written)
    return StoredModel(tensors), checked.ignored


def _from_other_layout(checked: Checked, written: Sequence[TensorMap]) -> dict[str, Tensor]:
    """Our tensors are loaded as the layout has them, and stored as public ones."""
    from erniecore.engine.models.model_files import stored_as

    read = {entry.name: entry for entry in checked.maps}

    def parts_of(entry: TensorMap) -> list[Tensor]:
        return [checked.stored[name][1] for name in read[entry.name].sources]

    def dtype_of(entry: TensorMap) -> str:
        return LONG_NAMES[parts_of(entry)[0].dtype]

    return stored_as(written, dtype_of, lambda entry: read[entry.name].load([part.load() for part in parts_of(entry)]))
