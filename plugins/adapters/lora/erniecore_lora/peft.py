"""The directory layout of Hugging Face PEFT: ``adapter_config.json`` and ``adapter_model.safetensors``. numpy only.

``base_model.model.<module>.lora_A.weight`` is [r, in] and ``.lora_B.weight`` [out, r]: both are ours transposed. Routed
experts are stacked parameters (``stacked.py``), or modules of their own, ``….experts.3.up_proj``; both are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from erniecore.api import CheckpointError
from erniecore.api.tensors import read_tensors
from erniecore_lora.config import Variant
from erniecore_lora.saved import Description, Factors, pair_up, refuse
from erniecore_lora.sizes import Size
from erniecore_lora.stacked import unfuse
from erniecore_lora.targets import shortest_suffixes

if TYPE_CHECKING:
    from erniecore_lora.saved import Array

__all__ = [
    "CONFIG",
    "WEIGHTS",
    "Named",
    "adapter_config",
    "describe",
    "public_tensors",
    "public_whole",
    "read",
    "unfuse",
]

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>A|B|magnitude_vector)(\.default)?(\.weight)?")
_PARTS = {"A": "a", "B": "b", "magnitude_vector": "magnitude"}

_WEIGHT = ".weight"

#: trained whole beside the updates: the head of a reward model
WHOLE = "score.weight"
#: modules that PEFT names when it adapts a classifier, whichever of them the model has
_CLASSIFIERS = ["classifier", "score"]

#: key -> values that change nothing; a false value never does
_HARMLESS: dict[str, Sequence[Any]] = {
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),
    "modules_to_save": (_CLASSIFIERS, _CLASSIFIERS[1:]),
    **dict.fromkeys(
        (
            "lora_bias",
            "fan_in_fan_out",
            "layer_replication",
            "use_qalora",
            "alora_invocation_tokens",
        ),
        (),
    ),
    **dict.fromkeys(("trainable_token_indices", "use_bdlora", "arrow_config", "kasa_config", "velora_config"), ()),
}


def describe(file: Path, content: Mapping[str, Any]) -> Description | None:
    """From adapter_config.json; None when it is another kind of adapter than LoRA."""
    if content.get("peft_type") != "LORA":
        return None
    variant = Variant(bool(content.get("use_rslora")), bool(content.get("use_dora")))
    try:
        alpha = float(content["lora_alpha"])
        pattern = {key: float(value) for key, value in (content.get("alpha_pattern") or {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError("lora_alpha or alpha_pattern is not usable", where=str(file), code="ERN-K021") from error
    base = str(content.get("base_model_name_or_path") or "")
    refuse(file, content, _HARMLESS)
    return Description(file, "peft", base, variant, alpha, pattern)


def read(description: Description) -> dict[str, Factors]:
    """Module -> factors. Raises ``CheckpointError`` for tensors that are no part of a low-rank update."""
    path = description.file.with_name(WEIGHTS)
    parts: dict[str, dict[str, Array]] = {}
    for name, array in read_tensors(path).items():
        if name == PREFIX + WHOLE:
            continue
        match = _KEY.fullmatch(name)
        if match is None:
            raise CheckpointError("this tensor is no part of a low-rank update", where=f"{path}: {name}")
        part = _PARTS[match["part"]]
        parts.setdefault(match["module"], {})[part] = array.T if array.ndim == 2 else array
    return pair_up(path, parts)


def read_whole(description: Description) -> Array | None:
    """The head [H, 1] of a reward model, if the adapter brings one."""
    return read_head(description.file.with_name(WEIGHTS))


def read_head(path: Path) -> Array | None:
    """The head [H, 1] of a reward model, if it is among the tensors of a file."""
    found = read_tensors(path).get(PREFIX + WHOLE)
    return None if found is None else np.ascontiguousarray(found.T)


class Named(NamedTuple):
    """What an adapter changes, by public name: layers and whole parameters, each with rank and alpha.

    Attributes:
        modules, parameters: name -> rank and alpha.
        others: names of both that could have an update and have none, so that no ending names them.
    """

    modules: Mapping[str, Size]
    parameters: Mapping[str, Size]
    others: Sequence[str]


def adapter_config(named: Named, *, magnitudes: bool, dropout: float, base: str, whole: bool = False) -> dict[str, Any]:
    """adapter_config.json. ``whole``: the head of a reward model is among the tensors."""
    sizes = {**named.modules, **named.parameters}
    rank = Counter(size.rank for size in sizes.values()).most_common(1)[0][0]
    alpha = Counter(size.alpha for size in sizes.values()).most_common(1)[0][0]
    stabilized = {size.rank_stabilized for size in sizes.values()}
    assert len(stabilized) == 1, "one adapter, one kind of scale"
    return {
        "alpha_pattern": {module: _plain(size.alpha) for module, size in sizes.items() if size.alpha != alpha},
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": _plain(alpha),
        "lora_dropout": dropout,
        "modules_to_save": _CLASSIFIERS[1:] if whole else None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {module: size.rank for module, size in sizes.items() if size.rank != rank},
        "revision": None,
        "target_modules": shortest_suffixes(named.modules, named.others),
        "target_parameters": _parameters(named) or None,
        "task_type": "SEQ_CLS" if whole else "CAUSAL_LM",
        "use_dora": magnitudes,
        "use_rslora": stabilized.pop(),
    }


def _parameters(named: Named) -> list[str]:
    """Endings of the parameters; that of a layer's ``weight`` keeps the layer's name, because norms have one, too."""
    layers = [name.removesuffix(_WEIGHT) for name in named.parameters if name.endswith(_WEIGHT)]
    rest = [name for name in named.parameters if not name.endswith(_WEIGHT)]
    others = [name.removesuffix(_WEIGHT) for name in named.others]
    endings = [ending + _WEIGHT for ending in shortest_suffixes(layers, [*others, *named.modules])]
    return sorted([*endings, *shortest_suffixes(rest, [*named.others, *named.modules])])


def public_tensors(module: str, factors: Factors) -> dict[str, Array]:
    """PEFT's names and orientation for one module."""
    tensors = {
        f"{PREFIX}{module}.lora_A.weight": np.ascontiguousarray(factors.a.T),
        f"{PREFIX}{module}.lora_B.weight": np.ascontiguousarray(factors.b.T),
    }
    if factors.magnitude is not None:
        tensors[f"{PREFIX}{module}.lora_magnitude_vector"] = factors.magnitude
    return tensors


def public_whole(head: Array) -> dict[str, Array]:
    """PEFT's name and orientation of the head [H, 1]."""
    return {PREFIX + WHOLE: np.ascontiguousarray(head.T)}


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number
