"""Weights of a public model directory into a model, through the model's ``StateAdapter``; every doubt is an error.

Reads safetensors only, one tensor at a time. Writing is in ``model_files.py``; finding the model plugin of a directory
in ``bundles.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.checkpoint.comparing import compare_tensors, hint, list_problems
from erniecore.checkpoint.directories import MODEL_MANIFEST, verify_directory
from erniecore.checkpoint.files import translated
from erniecore.checkpoint.safetensors_io import damaged, merge_shards, refuse_pickle
from erniecore.checkpoint.safetensors_write import INDEX_NAME
from erniecore.checkpoint.tensors import LONG_NAMES, Array, Tensor, same_bits
from erniecore.engine import arrays
from erniecore.errors import CheckpointError, NumericsError, PluginError, shorten
from erniecore.files import read_json
from erniecore.types.model import StateAdapter, TensorMap
from erniecore.units import counted

if TYPE_CHECKING:
    from erniecore.types.model import Layer
    from erniecore.types.model import Tensor as PaddleTensor

#: endings of tensors that a directory has beside quantized weights for a server
_SERVED = ("_scale_inv", ".quant_weight", ".activation_scale")
SINGLE_NAME = "model.safetensors"
#: dtypes that convert into each other on request of the model
_FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did.

    Attributes:
        directory, layout: what was read, and as which layout.
        num_tensors, num_parameters: tensors of our model that were filled, and their elements.
        converted: ``"bfloat16 -> float32"`` -> number of public tensors.
        ignored: public tensors that this model leaves alone.
    """

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
    """Fill every parameter of ``layer`` from the safetensors files in ``directory``.

    The layout is decided once for all files: a square matrix does not show whether it is transposed. Nothing in
    ``layer`` changes unless all names and shapes are right.

    Raises:
        CheckpointError: files missing or damaged; tensors missing, unexpected or of another shape; a tied head that
            differs from the embedding; a dtype that does not convert.
        NumericsError: a value that is not finite.
        PluginError: the adapter's maps are not the tensors of ``layer``.
    """
    checked = check_weights(directory, layer.architecture, adapter)
    maps, targets = checked.maps, state_of(layer)
    check_maps(maps, targets)
    converted: dict[str, str] = {}
    for entry in maps:
        place(entry, targets[entry.name], checked.stored, converted)
    count = sum(prod(entry.shape) for entry in maps)
    changes = dict(Counter(converted.values()))
    return LoadReport(directory, checked.layout, len(maps), count, changes, checked.ignored)


class Checked(NamedTuple):
    """The weights of a directory, compared with what its model needs; no tensor was read yet."""

    stored: Mapping[str, tuple[Path, Tensor]]
    layout: str
    maps: Sequence[TensorMap]
    ignored: tuple[str, ...]


def check_weights(directory: Path, architecture: Mapping[str, Any], adapter: StateAdapter) -> Checked:
    """Open the files in ``directory``. Raises ``CheckpointError`` as :func:`load_weights`, but for values."""
    files = open_weights(directory)
    check_manifest(directory, {path.name for path, _ in files.values()})
    stored = files
    if any(name.endswith(_SERVED) for name in files):
        from erniecore.engine.models.served_weights import decoded

        stored = decoded(files)
    tensors = {name: tensor for name, (_, tensor) in stored.items()}
    same_as_embedding = check_tied_head(architecture, tensors, directory)
    names = [name for name in tensors if name not in same_as_embedding]
    layout = adapter.layout_of(names)
    maps = adapter.maps(layout, names)
    return Checked(stored, layout, maps, _check_names(maps, tensors, adapter, directory, same_as_embedding))


def check_sizes(directory: Path, adapter: StateAdapter) -> None:
    """Compare what config.json asks for with the headers of the files, before a model of that size is built.

    Raises:
        CheckpointError: tensors of another shape, or more than the files hold is missing.
    """
    tensors = {name: tensor for name, (_, tensor) in open_weights(directory).items()}
    if any(name.endswith(_SERVED) for name in tensors):
        return
    maps = adapter.maps(adapter.layout_of(list(tensors)), list(tensors))
    expected = {s: tuple(shape) for e in maps for s, shape in zip(e.sources, e.source_shapes, strict=True)}
    missing = sum(prod(shape) for name, shape in expected.items() if name not in tensors)
    fits = all(_fits(tensors[name].shape, shape) for name, shape in expected.items() if name in tensors)
    if not fits or missing > sum(prod(tensor.shape) for tensor in tensors.values()):
        _check_names(maps, tensors, adapter, directory, frozenset(tensors) - expected.keys())


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
    if single.is_file() and index.is_file() and SINGLE_NAME not in set(_weight_map(index).values()):
        raise CheckpointError(
            "this directory has both a single weight file and an index of shards",
            where=str(directory),
            found=f"{SINGLE_NAME} and {INDEX_NAME}",
            fix="remove the one that does not belong to this model",
        )
    if index.is_file():
        return _open_shards(directory, index)
    if single.is_file():
        return merge_shards([single])
    raise _no_weights(directory)


def check_manifest(directory: Path, names: Collection[str]) -> None:
    """Compare weight files with the hashes that erniecore wrote beside them, where it did."""
    problems = verify_directory(directory, names)
    if problems:
        raise CheckpointError(
            "the weights are not those that were written: " + list_problems(problems),
            where=str(directory / problems[0].partition(":")[0]),
            fix=f"fetch or write the model again; if you changed it on purpose, remove {MODEL_MANIFEST}",
            code="ERN-K002",
        )


def _no_weights(directory: Path) -> CheckpointError:
    if not directory.is_dir():
        return CheckpointError("this model directory does not exist", where=str(directory))
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in (".pdparams", ".bin", ".pt", ".pth", ".pkl"):
            try:
                refuse_pickle(path)
            except CheckpointError as error:
                return error
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    return CheckpointError(
        "this directory holds no weights",
        where=str(directory),
        found=", ".join(others[:5]),
        expected=f"{SINGLE_NAME} or {INDEX_NAME}",
        fix="name the directory that holds config.json and the weights",
    )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        with translated(index, "reading weights"):
            weight_map = read_json(index)["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(index, "the index is damaged", expected="a JSON object with `weight_map`") from error
    plain = isinstance(weight_map, dict) and all(
        isinstance(file, str) and Path(file).name == file for file in weight_map.values()
    )
    if not plain:
        raise damaged(index, "`weight_map` must map tensor names to file names beside the index")
    return dict(weight_map)


def _open_shards(directory: Path, index: Path) -> dict[str, tuple[Path, Tensor]]:
    weight_map = _weight_map(index)
    files = sorted(set(weight_map.values()))
    missing = [name for name in files if not os.path.isfile(directory / name)]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(files)} weight shards are missing",
            where=str(directory),
            found=", ".join(missing[:5]),
            fix="copy or download the missing files",
        )
    stored = merge_shards([directory / name for name in files])
    for name, file in weight_map.items():
        if name not in stored:
            raise damaged(directory / file, "the index promises this tensor, but the shard does not hold it", name)
        if stored[name][0].name != file:
            raise damaged(index, f"the index says {file}, but the tensor is in {stored[name][0].name}", name)
    for name, (path, _) in stored.items():
        if name not in weight_map:
            raise damaged(path, "this tensor is not in the index", name)
    return stored


def check_tied_head(architecture: Mapping[str, Any], tensors: Mapping[str, Tensor], directory: Path) -> frozenset[str]:
    """Public head weights that repeat the embedding of a tied model, and so need no loading.

    Raises:
        CheckpointError: config.json says that head and embedding are one, but the files hold two different ones.
    """
    heads = [name for name in tensors if f".{name}".endswith(".lm_head.weight")]
    embeddings = [name for name in tensors if f".{name}".endswith(".embed_tokens.weight")]
    if not architecture.get("tie_word_embeddings") or not heads or not embeddings:
        return frozenset()
    head, embedding = tensors[heads[0]], tensors[embeddings[0]]
    same = head.shape == embedding.shape and head.dtype == embedding.dtype
    if same and same_bits(head.load(), embedding.load()):
        return frozenset(heads)
    raise CheckpointError(
        "config.json says tie_word_embeddings, but the head differs from the embedding",
        where=f"{directory}: {heads[0]}",
        fix="set tie_word_embeddings to false, or remove the head from the files, whichever is true of this model",
        code="ERN-K004",
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
    problems: list[str] = []
    for name in expected:
        if name not in tensors:
            problems.append(f"{name} is missing" + hint(name, unexpected, problems))
    for name in unexpected:
        problems.append(f"{name} is unexpected" + hint(name, expected, problems))
    for name, shape in expected.items():
        if name in tensors and not _fits(tensors[name].shape, shape):
            problems.append(f"{name} has shape {list(tensors[name].shape)}, expected {list(shape)}")
    if problems:
        raise CheckpointError(
            f"the weights do not fit the model ({_count(problems)}): " + list_problems(problems),
            where=str(directory),
            fix="check that config.json belongs to these weights",
            code="ERN-K004",
        )
    return ignored


def _count(problems: Sequence[str]) -> str:
    return counted(len(problems), "problem")


def _fits(found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(found) == len(expected) and all(want in (have, -1) for have, want in zip(found, expected, strict=True))


def place(
    entry: TensorMap, target: PaddleTensor, stored: Mapping[str, tuple[Path, Tensor]], converted: dict[str, str]
) -> None:
    """Fill ``target`` from the public tensors ``stored``; ``converted`` gets the names of those of another dtype."""
    wanted = arrays.dtype_name(target)
    parts = []
    for name in entry.sources:
        path, tensor = stored[name]
        found = LONG_NAMES[tensor.dtype]
        if found != wanted:
            converted[name] = f"{found} -> {wanted}"
        part = convert(tensor.load(), found, wanted, f"{path}: {name}")
        check_finite(part, wanted, f"{path}: {name}")
        parts.append(part)
    array = entry.load(parts)
    if tuple(array.shape) != tuple(target.shape):
        raise PluginError(
            "the model plugin's state adapter made a tensor of another shape",
            where=entry.name,
            found=shorten(list(array.shape)),
            expected=str(list(target.shape)),
        )
    arrays.set_value(target, array)


def check_finite(array: Array, dtype: str, where: str) -> None:
    """Raise ``NumericsError`` for NaN and infinity: softmax would turn them into answers that look merely untrained."""
    if not arrays.all_finite(array, dtype):
        raise NumericsError(
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
