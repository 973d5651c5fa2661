"""Writing the GGUF file of a model: a plan of its tensors first, then header and keys, then the data in blocks of rows.

Memory is bounded by a block and, where a part of a tensor has to be converted to be read, by that part. The caller makes the
directory appear whole or not at all.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import gguf
import numpy as np

from erniecore.api import CheckpointError, counted
from erniecore.api.export import ModelBundle
from erniecore.api.model_files import (
    LONG_NAMES,
    Array,
    StoredTensor,
    memory_dtype,
    public_tensors,
    write_directory_manifest,
)
from erniecore_gguf.architecture import (
    Names,
    add_sizes,
    check_architecture,
    group_experts,
    without_prediction,
)
from erniecore_gguf.types import FILE_TYPES, FileType, encode, num_bytes, type_of
from erniecore_gguf.vocabulary import add_tokenizer

#: elements that are converted at a time
_BLOCK = 1 << 22


class Planned(NamedTuple):
    """A tensor of the file: llama.cpp's name, shape, type, and the public tensors that it is made of, one behind the other."""

    name: str
    shape: tuple[int, ...]
    stored: gguf.GGMLQuantizationType
    parts: Mapping[str, StoredTensor]


def write_gguf(bundle: ModelBundle, directory: Path, dtype: str = "") -> Path:
    """Write ``model-TYPE.gguf`` and the manifest into the existing, empty ``directory``; returns the file.

    Args:
        dtype: see ``GgufConfig``; empty: the dtype of most of the weights in memory.

    Raises:
        UsageError: a model or tokenizer that llama.cpp would not read as ours.
        NumericsError: a value that is not finite, or beyond float16.
    """
    config = bundle.architecture
    arch = check_architecture(config)
    file_type = FILE_TYPES[dtype or memory_dtype(bundle)]
    kept, dropped = without_prediction(tensors := public_tensors(bundle))
    planned = plan(
        {name: tensors[name] for name in kept}, Names(arch, int(config["num_hidden_layers"])), file_type, config
    )
    path = directory / f"model-{file_type.name}.gguf"
    logging.getLogger("gguf").setLevel(logging.WARNING)  # it would report each file that it opens
    with closing(gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])) as writer:
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(str(bundle.provenance.get("name") or config["model_type"]))
        writer.add_file_type(int(file_type.number))
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_sizes(writer, config, kept)
        notes = add_tokenizer(writer, bundle.tokenizer, int(config["vocab_size"]))
        _write(writer, planned)
    notes += _notes(planned, dropped, file_type, path.name)
    facts = {"parameters": sum(prod(t.shape) for t in planned), "type": file_type.name, **bundle.provenance}
    write_directory_manifest(directory, {**facts, "notes": notes})
    return path


def plan(
    tensors: Mapping[str, StoredTensor], names: Names, file_type: FileType, config: Mapping[str, object]
) -> list[Planned]:
    """The tensors of the file in their order. Raises ``UsageError`` for one that llama.cpp does not know."""
    tied = "lm_head.weight" not in tensors
    planned = []
    for key, parts in group_experts(tensors).items():
        name = names.of(key)
        shape = tensors[parts[0]].shape
        if name.endswith("_exps.weight"):
            shape = (len(parts), *shape)
        elif len(shape) == 2 and shape[0] == 1 and name.endswith(".bias"):
            shape = shape[1:]
        stored = type_of(name, shape, file_type.matrices, tied=tied)
        planned.append(Planned(name, shape, stored, {part: tensors[part] for part in parts}))
    return planned


def _write(writer: gguf.GGUFWriter, planned: Sequence[Planned]) -> None:
    for tensor in planned:
        size = num_bytes(tensor.shape, tensor.stored)
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, raw_dtype=tensor.stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for tensor in planned:
        size = _write_data(file, tensor)
        expected = num_bytes(tensor.shape, tensor.stored)
        if size != expected:
            raise CheckpointError("a tensor has another size than its shape says", where=tensor.name,
                                  found=f"{size} bytes", expected=f"{expected} bytes")  # fmt: skip
        writer.write_padding(file, size)


def _write_data(file: BinaryIO, tensor: Planned) -> int:
    size = 0
    for where, part in tensor.parts.items():
        array = part.load()
        for rows in _blocks(array):
            block = encode(rows, LONG_NAMES[part.dtype], tensor.stored, where)
            size += file.write(np.ascontiguousarray(block).view(np.uint8).data)
        _release(array)
    return size


def _blocks(array: Array) -> Iterator[Array]:
    """``array`` in blocks of whole rows."""
    rows = array.reshape(-1, array.shape[-1])
    count = max(1, _BLOCK // rows.shape[-1])
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


def _release(array: Array) -> None:
    """Tell the system that the pages of the mapped file behind ``array``, if it is one, are not needed any more."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def _notes(planned: Sequence[Planned], dropped: Sequence[str], file_type: FileType, file: str) -> list[str]:
    notes = []
    if dropped:
        notes.append(
            f"left out: {counted(len(dropped), 'tensor')} of multi-token prediction (model.mtp_*), for which "
            "llama.cpp has no place"
        )
    block, _ = gguf.GGML_QUANT_SIZES[file_type.matrices]
    narrow = [t.name for t in planned if t.stored is gguf.GGMLQuantizationType.F16] if block > 1 else []
    if narrow:
        notes.append(
            f"float16 instead of {file_type.name}: {counted(len(narrow), 'tensor')} whose rows are no "
            f"multiple of {block}, such as {narrow[0]}"
        )
    return [*notes, f"run it with llama.cpp: llama-cli -m {file} --jinja"]
