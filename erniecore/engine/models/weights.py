"""Weights of a public model directory into a model, through the model's ``StateAdapter``; every doubt is an error.

Reads safetensors only, one tensor at a time. Writing is in ``model_files.py``; finding the model plugin of a directory
in ``bundles.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from erniecore_checkpoint.comparing import compare_tensors, list_problems
from erniecore_checkpoint.directories import MODEL_MANIFEST, verify_directory
from erniecore_checkpoint.safetensors_io import merge_shards
from erniecore_checkpoint.safetensors_write import INDEX_NAME, SINGLE_NAME
from erniecore_checkpoint.tensors import LONG_NAMES, Array, Tensor
from erniecore_system.contents import FileHashes
from erniecore_system.units import counted

from erniecore.data.splits import user_cache
from erniecore.engine import arrays
from erniecore.engine.fingerprint import HASHES
from erniecore.engine.models.filling import Box, Source, fill, fill_from
from erniecore.errors import CheckpointError, NumericsError, PluginError, shorten
from erniecore.types.model import StateAdapter, TensorMap

if TYPE_CHECKING:
    from erniecore.types.model import Layer
    from erniecore.types.model import Tensor as PaddleTensor

#: endings of tensors that a directory has beside quantized weights for a server
_SERVED = ("_scale_inv", ".quant_weight", ".activation_scale")
#: dtypes that convert into each other on request of the model
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did. ``converted``: ``"bfloat16 -> float32"`` -> number of public tensors; ``ignored``: public tensors that
    this model leaves alone."""

    directory: Path
    layout: str
    num_tensors: int
    num_parameters: int
    converted: Mapping[str, int]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{counted(self.num_tensors, 'tensor')}, {self.num_parameters:,} parameters from {self.directory}"
        for change, count in self.converted.items():
            text += f"; {count} converted {change}"
        return text + (f"; {len(self.ignored)} left alone" if self.ignored else "")


def load_weights(layer: Layer, directory: Path, adapter: StateAdapter) -> LoadReport:
    """Fill every parameter of ``layer`` from ``directory``. Raises as :func:`check_weights` and :func:`attach_weights`, and
    ``NumericsError`` for values that are not finite."""
    report = attach_weights(layer, directory, check_weights(directory, layer.architecture, adapter))
    fill(layer)
    return report


def attach_weights(layer: Layer, directory: Path, checked: Checked) -> LoadReport:
    """Say that the values of ``layer`` are those in ``directory``: an empty parameter gets them when it is filled
    (``filling.py``), any other at once. Raises ``PluginError``: the adapter's maps are not the tensors of ``layer``."""
    maps, targets = checked.maps, state_of(layer)
    check_maps(maps, targets)
    sources = [(n, targets[e.name]) for e in maps for n in e.sources]
    found = {n: (LONG_NAMES[checked.stored[n][1].dtype], arrays.dtype_name(target)) for n, target in sources}
    converted = Counter(f"{dtype} -> {wanted}" for dtype, wanted in found.values() if dtype != wanted)
    fill_from(targets, {entry.name: source_of(checked.stored, entry) for entry in maps})
    count = sum(prod(entry.shape) for entry in maps)
    return LoadReport(directory, checked.layout, len(maps), count, dict(converted), checked.ignored)


class Checked(NamedTuple):
    """The weights of a directory, compared with what its model needs; no tensor was read yet."""

    stored: Mapping[str, tuple[Path, Tensor]]
    layout: str
    maps: Sequence[TensorMap]
    ignored: tuple[str, ...]


def check_weights(directory: Path, architecture: Mapping[str, Any], adapter: StateAdapter) -> Checked:
    """Compare the files in ``directory`` with what the model needs, before one of that size is built. The layout is decided
    once for all files: a square matrix does not show whether it is transposed.

    Raises:
        CheckpointError: files missing or damaged; tensors missing, unexpected or of another shape; a tied head that
            differs from the embedding.
    """
    files = open_weights(directory)
    check_manifest(directory, {path.name for path, _ in files.values()})
    stored = files
    if any(name.endswith(_SERVED) for name in files):
        from erniecore.engine.models.served_weights import decoded

        stored = decoded(files)
    tensors = {name: tensor for name, (_, tensor) in stored.items()}
    same_as_embedding: frozenset[str] = frozenset()
    if architecture.get("tie_word_embeddings") and any(name.endswith("lm_head.weight") for name in tensors):
        from erniecore.engine.models.weight_shards import check_tied_head

        same_as_embedding = check_tied_head(tensors, directory)
    names = [name for name in tensors if name not in same_as_embedding]
    layout = adapter.layout_of(names)
    maps = adapter.maps(layout, names)
    return Checked(stored, layout, maps, _check_names(maps, tensors, adapter, directory, same_as_embedding))


def state_of(layer: Layer) -> dict[str, PaddleTensor]:
    """Structured name -> parameter or saved buffer of ``layer``."""
    return dict(layer.state_dict())


def open_weights(directory: Path) -> dict[str, tuple[Path, Tensor]]:
    """Public name -> (file, tensor) of a model directory: one file, or the shards of an index.

    Raises:
        CheckpointError: no weights, pickles only, both forms at once, an index that names a missing shard or does not
            agree with the shards.
    """
    single, index = directory / SINGLE_NAME, directory / INDEX_NAME
    if single.is_file() and not index.is_file():
        return merge_shards([single])
    from erniecore.engine.models.weight_shards import no_weights, open_shards, weight_map

    if single.is_file() and SINGLE_NAME not in set(weight_map(index).values()):
        raise CheckpointError(
            "this directory has both a single weight file and an index of shards",
            where=str(directory),
            found=f"{SINGLE_NAME} and {INDEX_NAME}",
            fix="remove the one that does not belong to this model",
        )
    if index.is_file():
        return open_shards(directory, index)
    raise no_weights(directory)


def check_manifest(directory: Path, names: Collection[str]) -> None:
    """Compare weight files with the hashes that erniecore wrote beside them, where it did. A file that has not been touched since
    it was hashed is not read again."""
    with FileHashes(user_cache().with_name(HASHES)) as hashes:
        problems = verify_directory(directory, names, lambda path: hashes.of_file(str(path)).get(str(path), ""))
    if problems:
        raise CheckpointError(
            "the weights are not those that were written: " + list_problems(problems),
            where=str(directory / problems[0].partition(":")[0]),
            fix=f"fetch or write the model again; if you changed it on purpose, remove {MODEL_MANIFEST}",
            code="ERN-K002",
        )


def check_maps(maps: Sequence[TensorMap], targets: Mapping[str, PaddleTensor]) -> None:
    """Raise ``PluginError`` unless ``maps`` has every tensor of the model exactly once, in its shape."""
    found = {entry.name: (tuple(entry.shape), "") for entry in maps}
    problems = compare_tensors(found, {n: (tuple(t.shape), "") for n, t in targets.items()}, "the model")
    if len(found) != len(maps):
        problems += [f"{name} is mapped twice" for name, count in Counter(e.name for e in maps).items() if count > 1]
    if problems:
        raise PluginError("the model plugin's state adapter does not fit its model: " + list_problems(problems))


def _check_names(
    maps: Sequence[TensorMap],
    tensors: Mapping[str, Tensor],
    adapter: StateAdapter,
    directory: Path,
    known: frozenset[str],
) -> tuple[str, ...]:
    expected = {s: tuple(shape) for e in maps for s, shape in zip(e.sources, e.source_shapes, strict=True)}
    spare = [name for name in tensors if name not in expected and name not in known]
    ignored = tuple(name for name in spare if adapter.ignored(name))
    unexpected = [name for name in spare if name not in ignored]
    wrong = [n for n, shape in expected.items() if n not in tensors or not _fits(tensors[n].shape, shape)]
    if unexpected or wrong:
        from erniecore.engine.models.weight_shards import name_problems

        raise name_problems(expected, tensors, unexpected, wrong, directory)
    return ignored


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(found) == len(expected) and all(want in (have, -1) for have, want in zip(found, expected, strict=True))


def place(stored: Mapping[str, tuple[Path, Tensor]], entry: TensorMap, box: Box, target: PaddleTensor) -> None:
    """Fill ``target`` from the public tensors ``stored``, each of which is read once and forgotten: with the part of the tensor
    that ``box`` names, for which no other pages of a mapped file are read."""
    wanted = arrays.dtype_name(target)
    names, inner = _within(entry, box)
    sources = [(f"{stored[name][0]}: {name}", stored[name][1]) for name in names]
    dtypes = [LONG_NAMES[tensor.dtype] for _, tensor in sources]
    parts = [tensor.load() for _, tensor in sources]
    if len({*dtypes}) > 1:  # else they are converted while they are placed
        parts = [
            convert(part, dtype, wanted, where) for part, dtype, (where, _) in zip(parts, dtypes, sources, strict=True)
        ]
        dtypes = [wanted]
    array = _loaded(entry, parts, inner)
    if tuple(array.shape) != tuple(target.shape):
        raise PluginError(
            "the model plugin's state adapter made a tensor of another shape",
            where=entry.name,
            found=shorten(list(array.shape)),
            expected=str(list(target.shape)),
        )
    change = partial(convert, found=dtypes[0], wanted=wanted, where=sources[0][0])
    if not arrays.place_values(target, array, dtypes[0], change):
        for part, (where, tensor) in zip(parts, sources, strict=True):
            check_finite(convert(part, LONG_NAMES[tensor.dtype], wanted, where), wanted, where)
    for _, tensor in sources:
        tensor.release()


def source_of(stored: Mapping[str, tuple[Path, Tensor]], entry: TensorMap, box: Box = ()) -> Source:
    """Where the tensor that ``entry`` describes has its values from, or the part of it in ``box``."""
    dtypes = {LONG_NAMES[stored[name][1].dtype] for name in entry.sources}

    def within(inner: Box) -> Source:
        return source_of(stored, entry, _inside(box, inner))

    known = stored, entry, box
    if len(dtypes) > 1 or not arrays.on_host():
        return Source(partial(place, *known), within=within)
    (dtype,) = dtypes
    return Source(partial(place, *known), dtype, partial(view, *known, dtype), partial(parts, *known, dtype), within)


def _inside(box: Box, inner: Box) -> Box:
    """``inner`` of what is in ``box``, counted from the beginning of the whole."""
    firsts = [cut.start for cut in box] + [0] * len(inner)
    cuts = [slice(first + cut.start, first + cut.stop) for first, cut in zip(firsts, inner, strict=False)]
    return (*cuts, *box[len(cuts) :])


def _within(entry: TensorMap, box: Box) -> tuple[Sequence[str], Box]:
    """The sources that ``box`` needs, and what it is in the tensor that they make."""
    if entry.stacked and box:
        return entry.sources[box[0]], (slice(None), *box[1:])
    return entry.sources, box


def _loaded(entry: TensorMap, parts: Sequence[Array], box: Box) -> Array:
    """What of the tensor that ``parts`` make is in ``box``; each matrix of a stack is cut before the next is read."""
    if entry.stacked and len(box) > 1:
        return np.concatenate([entry.load([part])[box] for part in parts])
    return entry.load(parts)[box]


def view(
    stored: Mapping[str, tuple[Path, Tensor]], entry: TensorMap, box: Box, dtype: str
) -> tuple[PaddleTensor, bool]:
    """See ``filling.stored_values``. The values are looked at once, for NaN and infinity, and are out of memory again then."""
    matrices = list(parts(stored, entry, box, dtype))
    array = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    swapped = array.ndim > 1 and not array.flags.c_contiguous and array.swapaxes(-1, -2).flags.c_contiguous
    return arrays.over(np.ascontiguousarray(array.swapaxes(-1, -2) if swapped else array), dtype), swapped


def parts(stored: Mapping[str, tuple[Path, Tensor]], entry: TensorMap, box: Box, dtype: str) -> Iterator[Array]:
    """The values of ``entry`` as its file has them, matrix by matrix of a stack; see ``filling.stored_parts``."""
    sources, inner = _within(entry, box)
    for names in [[name] for name in sources] if entry.stacked else [sources]:
        found = [stored[name][1].load() for name in names]
        array = _loaded(entry, found, inner)
        if not arrays.all_finite(array, dtype):
            for name, part in zip(names, found, strict=True):
                check_finite(part, dtype, f"{stored[name][0]}: {name}")
        yield array
        for name in names:
            stored[name][1].release()


def check_finite(array: Array, dtype: str, where: str) -> None:
    """Raise ``NumericsError`` for NaN and infinity: softmax would turn them into answers that look merely untrained."""
    if not arrays.all_finite(array, dtype):
        raise not_finite(dtype, where)


def not_finite(dtype: str, where: str) -> NumericsError:
    """The error of a weight. ``where``: file and name."""
    return NumericsError(
        f"this weight holds values that are not finite in {dtype}",
        where=where,
        fix="the model diverged or the file is damaged: use an earlier checkpoint, or fetch the file again",
    )


def convert(array: Array, found: str, wanted: str, where: str) -> Array:
    """``array`` of dtype ``found`` as dtype ``wanted``, rounded to nearest; bfloat16 travels as bits.

    Raises:
        CheckpointError: one of them is not a floating-point dtype (quantized weights need their quantizer).
    """
    if found == wanted:
        return array
    if found not in _FLOATS or wanted not in _FLOATS:
        raise CheckpointError(
            "this dtype cannot become that of the model", where=where, found=found, expected=wanted, code="ERN-K004"
        )
    exact = arrays.bfloat16_to_float32(array) if found == "bfloat16" else array
    if wanted == "bfloat16":
        return arrays.float32_to_bfloat16(exact.astype(np.float32))
    return exact.astype(wanted)
