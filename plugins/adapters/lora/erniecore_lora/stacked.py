"""Updates of routed experts in the layout in which PEFT wraps stacked parameters (``target_parameters``,
``ParamWrapper``), as transformers 5 has experts: gate and up of all experts are one parameter, down another. numpy only.

PEFT nests one wrapper per parameter: with both adapted, ``experts.base_layer`` is gate and up side by side [.., 2 I] and
``experts`` is down; with one adapted it is ``experts``; widths tell which. A is [E r, in], B [out, r E] with the experts
innermost. Gate and up of rank r are one update of rank 2 r whose B has two blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from erniecore.api import CheckpointError
from erniecore_lora.saved import Description, Factors
from erniecore_lora.sizes import Size
from erniecore_lora.targets import Target

if TYPE_CHECKING:
    from erniecore_lora.saved import Array

#: parameters in the order in which PEFT nests them, and the matrices side by side in each
FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def fuse(
    layer: str, updates: Mapping[str, tuple[Size, Factors]], widths: Mapping[str, int]
) -> dict[str, tuple[str, Size, Factors]]:
    """Updates of one layer's experts as PEFT has them.

    Args:
        updates: matrix -> its size, and factors stacked as [E, in, r] and [E, r, out].
        widths: matrix -> out, of those without an update, too.
    Returns:
        parameter -> (name of the module in the weights, rank and alpha, factors [in, E r] and [r E, out]).
    """
    found = {}
    parts = {p: [m for m in matrices if m in updates] for p, matrices in FUSED.items()}
    adapted = [parameter for parameter, matrices in parts.items() if matrices]
    for parameter in adapted:
        size, a, b = _side_by_side([(m, *updates[m]) for m in parts[parameter]], FUSED[parameter], widths)
        wrapper = f"{layer}.base_layer" if parameter != adapted[-1] else layer
        flat_a = a.transpose(1, 0, 2).reshape(a.shape[1], -1)  # [E, in, r] -> [in, E r]
        flat_b = b.transpose(1, 0, 2).reshape(-1, b.shape[2])  # [E, r, out] -> [r E, out]
        found[parameter] = (wrapper, size, Factors(flat_a, flat_b))
    return found


def _side_by_side(
    updates: Sequence[tuple[str, Size, Factors]], matrices: Sequence[str], widths: Mapping[str, int]
) -> tuple[Size, Array, Array]:
    """One update [E, in, R], [E, R, sum of outs] at the scale of the first; what has no update has zeros."""
    scale, rank = updates[0][1].scale, sum(size.rank for _, size, _ in updates)
    starts = dict(zip(matrices, np.cumsum([0, *(widths[m] for m in matrices)]).tolist(), strict=False))
    a = np.concatenate([factors.a for *_, factors in updates], axis=2)
    b = np.zeros((len(a), rank, sum(widths[m] for m in matrices)), a.dtype)
    row = 0
    for matrix, size, factors in updates:
        start = starts[matrix]
        b[:, row : row + size.rank, start : start + widths[matrix]] = factors.b * (size.scale / scale)
        row += size.rank
    return Size(rank, scale * rank), a, b


def unfuse(description: Description, modules: Mapping[str, Factors], known: Sequence[Target]) -> Mapping[str, Factors]:
    """Updates of stacked parameters as updates of single experts, for a model with these targets."""
    stacks: dict[str, dict[str, Target]] = {}
    for target in known:
        if target.num_experts:
            stacks.setdefault(target.layer, {})[target.parameter] = target
    apart: dict[str, Factors] = {}
    for name, factors in modules.items():
        stack = stacks.get(name.removesuffix(".base_layer"))
        apart.update({name: factors} if stack is None else _experts(description, name, factors, stack))
    return apart


def _experts(description: Description, name: str, factors: Factors, stack: Mapping[str, Target]) -> dict[str, Factors]:
    layer = name.removesuffix(".base_layer")
    experts, hidden, width = stack["gate_proj"].shape
    parameter = {(hidden, 2 * width): "gate_up_proj", (width, hidden): "down_proj"}.get(
        (factors.a.shape[0], factors.b.shape[1])
    )
    if parameter is None or factors.a.shape[1] % experts:
        raise CheckpointError(
            "this update fits none of the experts' matrices",
            where=f"{description.file.parent}: {name}",
            found=f"{factors.a.shape[0]} inputs, {factors.b.shape[1]} outputs, {factors.a.shape[1]} ranks",
            code="ERN-K004",
        )
    rank = factors.a.shape[1] // experts
    a = factors.a.reshape(-1, experts, rank)  # [in, E, r]
    b = factors.b.reshape(rank, experts, -1)  # [r, E, out]
    alpha = description.alpha_of(f"{layer}.{parameter}")
    stabilized = description.variant.rank_stabilized
    found = {}
    for matrix, part, ranks in _blocks(FUSED[parameter], b):
        share = (ranks.stop - ranks.start) / rank
        for expert in range(experts):
            found[f"{layer}.{expert}.{matrix}"] = Factors(
                a[:, expert, ranks], part[ranks, expert], alpha=alpha * share ** (0.5 if stabilized else 1)
            )
    return found


def _blocks(matrices: Sequence[str], b: Array) -> list[tuple[str, Array, slice]]:
    """(matrix, its columns of B, the ranks that it has). Two blocks are two updates of half the rank; a matrix whose
    columns are all zero, beside one that has some, has none."""
    rank, half = len(b), len(b) // 2
    parts = np.split(b, len(matrices), axis=2)
    if len(parts) == 1:
        return [(matrices[0], b, slice(0, rank))]
    gate, up = parts
    if rank == 2 * half and not gate[half:].any() and not up[:half].any():
        return [(matrices[0], gate, slice(0, half)), (matrices[1], up, slice(half, rank))]
    whole = [(matrix, part, slice(0, rank)) for matrix, part in zip(matrices, parts, strict=True)]
    return [one for one in whole if one[1].any()] or whole
