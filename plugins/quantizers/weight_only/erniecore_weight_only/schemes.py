"""Which weights are quantized and with which scheme, from names and shapes alone: used by the plan before paddle is imported.

Candidates are the matrices ``<layer>.weight`` [in, out] of linear layers and the stacks ``<layer>.gate_proj``, ``.up_proj``,
``.down_proj`` [E, in, out] of routed experts. The public name of the first is that of the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple

from erniecore.api import ConfigError, nearest

STACKED = ("gate_proj", "up_proj", "down_proj")
#: layers whose weight is the head, the first that a model has: the second shares its own with it
HEADS = ("lm_head", "embed_tokens")


class Scheme(NamedTuple):
    """A quantization scheme: quant dtype ``int8``, ``int4`` or ``nf4``; ``group`` inputs share a float32 scale
    (0: all of an output). ``bf16``: bfloat16, without scales."""

    quant_dtype: str
    group: int = 0

    @property
    def bits(self) -> int:
        """Bits per quantized value."""
        return 8 if self.quant_dtype == "int8" else 4

    def code_rows(self, outputs: int) -> int:
        """Rows of the stored tensor: in four bits two outputs share a byte."""
        return outputs if self.bits == 8 else (outputs + 1) // 2

    def num_groups(self, inputs: int) -> int:
        """The number of scales per output."""
        return -(-inputs // self.group) if self.group else 1

    def num_bytes(self, shape: Sequence[int]) -> int:
        """Bytes of quantized values and scales of a weight [.., in, out]."""
        if self.quant_dtype == "bf16":
            return 2 * prod(shape)
        *stack, inputs, outputs = shape
        return prod(stack) * (self.code_rows(outputs) * inputs + 4 * outputs * self.num_groups(inputs))


class Rule(NamedTuple):
    """Layers that match ``patterns`` take ``scheme``; of several rules the last counts. ``key``: the setting. ``usual``:
    the setting's default, of which a pattern may match nothing, because not every model has every layer."""

    key: str
    patterns: tuple[str, ...]
    scheme: Scheme | None
    usual: tuple[str, ...]


class Place(NamedTuple):
    """One weight that can be packed: ``layer`` has it as ``parameter``. ``shape``: [.., in, out]. ``is_head``: of the model."""

    layer: str
    parameter: str
    shape: tuple[int, ...]
    is_head: bool = False

    @property
    def name(self) -> str:
        """What patterns are matched with."""
        return self.layer if self.parameter == "weight" else f"{self.layer}.{self.parameter}"


def places(shapes: Mapping[str, Sequence[int]]) -> list[Place]:
    """What patterns may name in a model of these parameters. Embeddings, heads and routers they may not: those are used through
    their weights. See :func:`head_place`."""
    found = []
    for name, shape in shapes.items():
        layer, _, parameter = name.rpartition(".")
        linear = parameter == "weight" and len(shape) == 2 and not _read_only(layer)
        if linear or (parameter in STACKED and len(shape) == 3):
            found.append(Place(layer, parameter, tuple(shape)))
    return found


def head_place(shapes: Mapping[str, Sequence[int]], head: str) -> dict[Place, Scheme]:
    """The head of a model of these parameters with its scheme; nothing if ``head``, a setting, is ``none``.

    Raises:
        ConfigError: the model has no head by one of the names ``HEADS``.
    """
    if head == "none":
        return {}
    for leaf in HEADS:
        for name, shape in shapes.items():
            layer, _, parameter = name.rpartition(".")
            if parameter == "weight" and layer.rpartition(".")[2] == leaf and len(shape) == 2:
                order = tuple(shape) if leaf == "lm_head" else tuple(reversed(shape))
                return {Place(layer, parameter, order, True): Scheme(head)}
    raise ConfigError.at("quantizer.head", f"this model has no layer {' or '.join(HEADS)}; set it to none")


def _read_only(layer: str) -> bool:
    leaf = layer.rpartition(".")[2]
    return "embed" in leaf or leaf in ("lm_head", "head", "score", "gate", "router")


def choose(known: Iterable[Place], rules: Sequence[Rule]) -> dict[Place, Scheme]:
    """The scheme of every weight that is packed.

    Raises:
        ConfigError: patterns of the user that match nothing, with the nearest names; nothing to pack.
    """
    known = list(known)
    problems = [
        (rule.key, _unknown(known, pattern))
        for rule in rules
        for pattern in rule.patterns
        if pattern not in rule.usual and not any(_matches(place, pattern) for place in known)
    ]
    if problems:
        raise ConfigError.at(f"quantizer.{problems[0][0]}", "; ".join(text for _, text in problems))
    chosen: dict[Place, Scheme] = {}
    for place in known:
        scheme = None
        for rule in rules:
            if any(_matches(place, pattern) for pattern in rule.patterns):
                scheme = rule.scheme
        if scheme is not None:
            chosen[place] = scheme
    if not chosen:
        raise ConfigError.at(f"quantizer.{rules[0].key}", "no layer of this model is packed with these patterns")
    return chosen


def _matches(place: Place, pattern: str) -> bool:
    return fnmatchcase(place.name, pattern) or fnmatchcase(place.name, f"*.{pattern}")


def _unknown(known: Sequence[Place], pattern: str) -> str:
    leaves = list(dict.fromkeys(place.name.rpartition(".")[2] for place in known))
    close = nearest(pattern, [*leaves, *(place.name for place in known)])
    hint = f"did you mean {close}?" if close else "names end in " + (", ".join(leaves) or "nothing that can be packed")
    return f"{pattern!r} matches no linear layer; {hint}"


def packed_bytes(shapes: Mapping[str, Sequence[int]], rules: Sequence[Rule], head: str = "none") -> dict[str, int]:
    """Parameter -> bytes of its quantized values and scales, for those that are packed."""
    chosen = choose(places(shapes), rules) | head_place(shapes, head)
    return {f"{place.layer}.{place.parameter}": scheme.num_bytes(place.shape) for place, scheme in chosen.items()}
