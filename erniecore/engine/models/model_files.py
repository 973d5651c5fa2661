"""Writing a model directory in the Hugging Face format: config, weights, tokenizer, chat template, provenance, manifest.

Reading one is in ``weights.py`` and ``bundles.py``. Nothing here decides names or shapes of tensors: the model's
``StateAdapter`` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore_checkpoint.directories import atomic_directory, write_directory_manifest, write_json
from erniecore_checkpoint.files import require_space, translated
from erniecore_checkpoint.safetensors_write import (
    DEFAULT_SHARD_BYTES,
    INDEX_NAME,
    SINGLE_NAME,
    WrittenFile,
    index_json,
    split_shards,
    write_safetensors,
    write_shards,
)
from erniecore_checkpoint.tensors import SHORT_NAMES, Array, Tensor

import erniecore
from erniecore.engine import arrays
from erniecore.engine.models.weights import check_maps, convert, state_of
from erniecore.errors import CheckpointError, PluginError
from erniecore.types.model import ModelBundle, TensorMap
from erniecore.types.protocols import PublicTensors
from erniecore.types.records import Json
from erniecore.types.text import Tokenizer

if TYPE_CHECKING:
    from erniecore.types.model import Tensor as PaddleTensor

#: keys of config.json that point at code which is not in our directories, or that would contradict `torch_dtype`
_DROPPED_KEYS = frozenset({"auto_map", "dtype", "torch_dtype"})


def save_model_directory(
    bundle: ModelBundle,
    target: Path,
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    dtype: str = "",
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write ``bundle`` to ``target``, whole or not at all.

    Args:
        bundle: model, architecture, adapter, and a tokenizer if there is one.
        target: new, empty, or a model directory that erniecore wrote (it is replaced).
        max_shard_bytes: more weights than this are cut into shards with an index.
        dtype: ``float32``, ``bfloat16`` or ``float16`` for the weights; empty: as they are in memory. Tensors that
            must stay float32 do.
        tensors: public name -> what is written in place of the weights of the model, which may then be empty.

    Raises:
        CheckpointError: foreign files in ``target``, no space, a failing disk.
        PluginError: the adapter does not fit the model.
    """
    tensors = public_tensors(bundle, dtype) if tensors is None else tensors
    require_space(target, sum(tensor.num_bytes for tensor in tensors.values()), "the model directory")
    with atomic_directory(target) as directory:
        _write_files(bundle, directory, tensors, max_shard_bytes, dtype)
    return target


def write_model_files(
    bundle: ModelBundle, directory: Path, *, max_shard_bytes: int = DEFAULT_SHARD_BYTES, dtype: str = ""
) -> None:
    """Write every file of the Hugging Face format into the existing, empty ``directory`` (see ``save_model_directory``)."""
    _write_files(bundle, directory, public_tensors(bundle, dtype), max_shard_bytes, dtype)


def _write_files(
    bundle: ModelBundle, directory: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int, dtype: str
) -> None:
    written = write_weights(directory, tensors, max_shard_bytes)
    write_assets(bundle, directory, dtype or memory_dtype(bundle))
    facts = provenance(bundle, written)
    (directory / "README.md").write_text(_readme(bundle.architecture, facts), encoding="utf-8")
    write_directory_manifest(directory, facts, {file.name: file.sha256 for file in written})


def write_structured(
    bundle: ModelBundle, directory: Path, *, max_shard_bytes: int = DEFAULT_SHARD_BYTES, dtype: str = ""
) -> None:
    """Write our own names and shapes into the existing, empty ``directory``: ``weights*.safetensors``, config.json,
    README.md and the manifest.

    Not called ``model.safetensors``: a reader of the Hugging Face format must not take [in, out] matrices for [out, in].
    """
    kept = {entry.name: entry.dtype for entry in bundle.adapter.maps("pt") if entry.dtype}
    tensors: dict[str, Tensor] = {}
    for name, target in state_of(bundle.model).items():
        stored = kept.get(name) or dtype or arrays.dtype_name(target)
        tensors[name] = Tensor(SHORT_NAMES[stored], tuple(target.shape), partial(converted, target, stored, name))
    written = write_shards(directory, "weights", tensors, max_shard_bytes)
    write_json(directory / "config.json", public_config(bundle.architecture, dtype or memory_dtype(bundle)))
    facts = {**provenance(bundle, written), "layout": "structured"}
    (directory / "README.md").write_text(_readme(bundle.architecture, facts), encoding="utf-8")
    write_directory_manifest(directory, facts, {file.name: file.sha256 for file in written})


def converted(target: PaddleTensor, dtype: str, name: str) -> Array:
    """``target`` on the host as ``dtype``, rounded to nearest; see ``convert``."""
    return convert(arrays.to_numpy(target), arrays.dtype_name(target), dtype, name)


def write_assets(bundle: ModelBundle, directory: Path, dtype: str) -> list[Path]:
    """Everything but the weights: config.json, generation_config.json, tokenizer files, chat_template.jinja."""
    paths = [
        write_json(directory / "config.json", public_config(bundle.architecture, dtype)),
        write_json(directory / "generation_config.json", _generation(bundle)),
    ]
    return paths if bundle.tokenizer is None else [*paths, *write_tokenizer(bundle.tokenizer, directory)]


def write_tokenizer(tokenizer: Tokenizer, directory: Path) -> list[Path]:
    """The tokenizer's own files, and chat_template.jinja."""
    with translated(directory, "writing the tokenizer"):
        paths = list(tokenizer.save(directory))
    jinja = directory / "chat_template.jinja"
    if tokenizer.chat_template is not None and not jinja.exists():
        jinja.write_text(tokenizer.chat_template.source, encoding="utf-8")
        paths.append(jinja)
    return paths


def write_weights(directory: Path, tensors: Mapping[str, Tensor], max_shard_bytes: int) -> list[WrittenFile]:
    """``model.safetensors``, or shards and their index when that is larger than ``max_shard_bytes``."""
    if len(split_shards({name: t.num_bytes for name, t in tensors.items()}, max_shard_bytes)) == 1:
        return [write_safetensors(directory / SINGLE_NAME, tensors)]
    written = write_shards(directory, "model", tensors, max_shard_bytes)
    write_json(directory / INDEX_NAME, index_json(written))
    return written


def public_tensors(
    bundle: ModelBundle, dtype: str = "", targets: Mapping[str, PaddleTensor] | None = None
) -> dict[str, Tensor]:
    """Public name -> lazily converted tensor of ``bundle.model``, or of ``targets`` in its place, in the adapter's order,
    layout ``pt``.

    One tensor of ours is held in memory at a time, also when it becomes many public ones (stacked experts); of a
    stored model, one public tensor.
    """
    maps = bundle.adapter.maps("pt")
    if targets is None and isinstance(bundle.model, PublicTensors):
        return bundle.model.public_tensors(maps, dtype)
    found = state_of(bundle.model) if targets is None else targets
    check_maps(maps, found)

    def dtype_of(entry: TensorMap) -> str:
        return entry.dtype or dtype or arrays.dtype_name(found[entry.name])

    return stored_as(maps, dtype_of, lambda entry: converted(found[entry.name], dtype_of(entry), entry.name))


def stored_as(
    maps: Sequence[TensorMap], dtype_of: Callable[[TensorMap], str], ours: Callable[[TensorMap], Array]
) -> dict[str, Tensor]:
    """Public name -> lazily stored tensor of the arrays that ``ours`` gives, of dtypes ``dtype_of``; ``maps``: for writing."""
    last: dict[str, Sequence[Array]] = {}  # the tensor converted last: its parts are asked for in a row

    def part(entry: TensorMap, position: int) -> Array:
        if entry.name not in last:
            if entry.store is None:
                raise PluginError("the model plugin's state adapter cannot write this tensor", where=entry.name)
            last.clear()
            last[entry.name] = entry.store(ours(entry))
        return last[entry.name][position]

    public: dict[str, Tensor] = {}
    for entry in maps:
        stored = SHORT_NAMES[dtype_of(entry)]
        for position, (name, shape) in enumerate(zip(entry.sources, entry.source_shapes, strict=True)):
            if name in public:
                raise PluginError("the model plugin's state adapter writes a tensor twice", where=name)
            public[name] = Tensor(stored, tuple(shape), partial(part, entry, position))
    return public


def memory_dtype(bundle: ModelBundle) -> str:
    """The dtype of most of the model's elements."""
    sizes: dict[str, int] = {}
    for tensor in state_of(bundle.model).values():
        name = arrays.dtype_name(tensor)
        sizes[name] = sizes.get(name, 0) + prod(tensor.shape)
    return max(sizes, key=lambda name: sizes[name]) if sizes else "float32"


def public_config(architecture: Json, dtype: str) -> dict[str, Any]:
    """config.json for all readers: ``torch_dtype`` and never ``dtype`` (both together are refused by some servers),
    the rope base at the top level and in ``rope_parameters``; unknown keys are kept, ``auto_map`` (remote code) is not.

    Raises:
        CheckpointError: no ``model_type``.
    """
    if not architecture.get("model_type"):
        raise CheckpointError("the architecture has no model_type", where="config.json", fix="add it to the recipe")
    config = {key: value for key, value in architecture.items() if key not in _DROPPED_KEYS}
    section = config.get("quantization_config")
    if isinstance(section, dict) and section.get("quant_method") != "erniecore":
        del config["quantization_config"]  # of a directory that was read as numbers
    config["torch_dtype"] = dtype
    rope = dict(config.get("rope_parameters") or {})
    theta = config.get("rope_theta", rope.get("rope_theta"))
    if theta is not None:
        config["rope_theta"] = theta
        config["rope_parameters"] = {"rope_type": "default", **rope, "rope_theta": theta}
    return config


def _generation(bundle: ModelBundle) -> dict[str, Any]:
    tokenizer = bundle.tokenizer
    ids = (
        {}
        if tokenizer is None
        else {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    )
    return {**ids, **bundle.generation}


def provenance(bundle: ModelBundle, written: Sequence[WrittenFile]) -> dict[str, Any]:
    """Where a model comes from: what the caller knows, and facts about what was written."""
    count = sum(prod(t.shape) for file in written for t in file.tensors.values())
    return {"erniecore": erniecore.__version__, "parameters": count, **bundle.provenance}


def _readme(architecture: Json, facts: Mapping[str, Any]) -> str:
    name = facts.get("name") or architecture["model_type"]
    rows = "\n".join(f"| {key} | {_cell(value)} |" for key, value in facts.items())
    structured = facts.get("layout") == "structured"
    layout = "with erniecore's own tensor names and shapes" if structured else "in the public safetensors layout"
    use = "" if structured else _USE
    return (
        f"# {name}\n\nModel type `{architecture['model_type']}`, written by erniecore {layout}. "
        "`erniecore_manifest.json` has the size and sha256 of every file.\n\n"
        f"## Provenance\n\n| what | value |\n|---|---|\n{rows}\n{use}"
    )


_USE = """
## Use

```python
import erniecore

model = erniecore.load_model("path/to/this/directory")
```
"""


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.replace("|", "\\|").replace("\n", " ")
