"""What each parameter is to an optimizer, from its name, its shape and the model's layout: its role, whether it decays, how
large its share of the learning rate is. No paddle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from erniecore.types.model import Layout, TensorMap
from erniecore.types.optimizer import ParameterRole, ParameterSpec

_NOT_DECAYED = re.compile(r"(^|[._])(bias|norm|layernorm|rmsnorm|ln)([._]|$)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.")
_EMBEDDING = re.compile(r"embed")
#: heads of a model whose layout names none
_HEADS = ("lm_head", "score")


def is_decayed(name: str, ndim: int) -> bool:
    """Whether weight decay applies: matrices and stacks of them, but no vector, norm or bias."""
    return ndim > 1 and not _NOT_DECAYED.search(name)


def role_of(name: str, shape: Sequence[int], layout: Layout, *, adapted: bool) -> ParameterRole:
    """The role of a parameter.

    Args:
        shape: of the full parameter. adapted: an adapter's parameters are trained, which are matrices beside hidden layers
            whatever the layout says of them.
    """
    style, heads = layout.style(name), layout.stages.head if layout.stages is not None else _HEADS
    if not is_decayed(name, len(shape)):
        return ParameterRole.OTHER
    if style == "vocab" or name.partition(".")[0] in heads:
        return ParameterRole.EMBEDDING
    if len(shape) == 3 and (style == "expert" or adapted):
        return ParameterRole.EXPERTS
    hidden = style in ("column", "row") or any(fnmatchcase(name, pattern) for pattern in layout.matrices)
    return ParameterRole.MATRIX if len(shape) == 2 and (hidden or adapted) else ParameterRole.OTHER


def trained_specs(
    maps: Iterable[TensorMap],
    adapter: Mapping[str, Sequence[int]] | None,
    packed: Iterable[str],
    precision: str,
    layout: Layout,
) -> list[ParameterSpec]:
    """What a run trains, before its model is built.

    Args:
        maps: of the base model. adapter: name -> shape of what an adapter trains while the base is frozen; None without one.
        packed: names of what a quantizer packs.
    """
    if adapter is not None:
        return [
            ParameterSpec(name, tuple(shape), precision, role_of(name, shape, layout, adapted=True))
            for name, shape in adapter.items()
        ]
    without = set(packed)
    return [
        ParameterSpec(m.name, m.shape, m.dtype or precision, role_of(m.name, m.shape, layout, adapted=False))
        for m in maps
        if m.trained and m.name not in without
    ]


def count_layers(names: Iterable[str]) -> int:
    """One more than the highest number of a layer that the names of parameters tell."""
    return max((int(match.group(1)) + 1 for name in names if (match := _LAYER.search(name))), default=0)


def layer_factors(names: Iterable[str], lowest: float, num_layers: int = 0) -> dict[str, float]:
    """Layer-wise factors of the learning rate: ``lowest`` for embeddings, 1 for the head and final norm, and
    ``lowest + (1 − lowest)(i + 1)/(L + 1)`` for layer i of L (0: as many as the names tell)."""
    names = list(names)
    depth = {name: int(match.group(1)) for name in names if (match := _LAYER.search(name))}
    num_layers = num_layers or count_layers(names)
    factors = {}
    for name in names:
        if name in depth:
            factors[name] = lowest + (1 - lowest) * (depth[name] + 1) / (num_layers + 1)
        else:
            factors[name] = lowest if _EMBEDDING.search(name) else 1.0
    return factors


def factor_of(name: str, factors: Mapping[str, float]) -> float:
    """The factor of the first pattern (``fnmatch``) that matches; 1 where none does."""
    return next((factor for pattern, factor in factors.items() if fnmatchcase(name, pattern)), 1.0)
