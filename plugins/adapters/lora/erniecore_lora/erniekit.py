"""The directory layout of ERNIEKit and PaddleFormers: ``lora_config.json`` and ``peft_model-*.safetensors``. Read only.

Factors are in Paddle's order, ``<layer>.lora_A`` [in, r] and ``.lora_B`` [r, out]; names begin with ``ernie.`` or
``model.``. Layers that Paddle checkpoints fuse share one A, and their B lies side by side: ``qkv_proj`` is [Q | K | V],
``up_gate_proj`` is [gate | up]. They are taken apart once a model tells how wide each part is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import CheckpointError
from erniecore.api.tensors import read_tensors
from erniecore_lora.config import Variant
from erniecore_lora.saved import Description, Factors, pair_up, read_json, refuse
from erniecore_lora.targets import Target

if TYPE_CHECKING:
    from erniecore_lora.saved import Array

CONFIG = "lora_config.json"
INDEX = "peft_model.safetensors.index.json"
#: fused layer -> its parts from left to right
FUSED: dict[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "up_gate_proj": ("gate_proj", "up_proj"),
}
_KEY = re.compile(r"(?P<prefix>ernie|model)\.(?P<module>.+)\.lora_(?P<part>A|B)")
_HARMLESS: dict[str, Sequence[Any]] = {
    "trainable_bias": ("none",),
    "tensor_parallel_degree": (0, 1, -1),
    **dict.fromkeys(("pissa", "enable_lora_list", "nola", "use_mora", "do_qat"), ()),
}


def describe(file: Path, content: Mapping[str, Any]) -> Description | None:
    """The description in a ``lora_config.json``."""
    if "r" not in content or "lora_alpha" not in content:
        raise CheckpointError("r or lora_alpha is missing", where=str(file), code="ERN-K021")
    refuse(file, content, _HARMLESS)
    variant = Variant(rank_stabilized=bool(content.get("rslora")))
    base = str(content.get("base_model_name_or_path") or "")
    try:
        alpha = float(content["lora_alpha"])
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError("lora_alpha is no number", where=str(file), code="ERN-K021") from error
    return Description(file, "erniekit", base, variant, alpha)


def read(description: Description) -> dict[str, Factors]:
    """Module -> factors, fused ones under their fused names."""
    directory = description.file.parent
    parts: dict[str, dict[str, Array]] = {}
    for path in _files(directory):
        for name, array in read_tensors(path).items():
            match = _KEY.fullmatch(name)
            if match is None:
                raise CheckpointError("this tensor is no part of a low-rank update", where=f"{path}: {name}")
            parts.setdefault(f"model.{match['module']}", {})[match["part"].lower()] = array
    return pair_up(directory, parts)


def read_whole(description: Description) -> None:
    """This layout has no place for layers that are trained whole."""


def _files(directory: Path) -> list[Path]:
    """The shards that the index names, or all there are without one."""
    found = sorted(directory.glob("peft_model*.safetensors"))
    index = directory / INDEX
    if index.is_file():
        wanted = sorted({directory / str(name) for name in read_json(index).get("weight_map", {}).values()})
        missing = [path.name for path in wanted if path not in found]
        if missing:
            raise CheckpointError("adapter weights are missing", where=str(directory), found=", ".join(missing[:5]))
        return wanted
    if not found:
        raise CheckpointError("this adapter has no weights", where=str(directory), expected="peft_model*.safetensors")
    return found


def unfuse(description: Description, modules: Mapping[str, Factors], known: Sequence[Target]) -> Mapping[str, Factors]:
    """Fused layers taken apart, for a model with these targets. Raises ``CheckpointError`` for another width."""
    widths = {module: target.shape[-1] for target in known for module in target.modules()}
    apart: dict[str, Factors] = {}
    for name, factors in modules.items():
        above, _, leaf = name.rpartition(".")
        names = [f"{above}.{part}" for part in FUSED.get(leaf, ())]
        if not names or not all(part in widths for part in names):
            apart[name] = factors
            continue
        if sum(widths[part] for part in names) != factors.b.shape[1]:
            raise CheckpointError(
                "a fused update has another width",
                where=f"{description.file.parent}: {name}",
                found=str(factors.b.shape[1]),
                expected=" + ".join(str(widths[part]) for part in names),
            )
        start = 0
        for part in names:
            apart[part] = factors._replace(b=factors.b[:, start : start + widths[part]])
            start += widths[part]
    return apart
