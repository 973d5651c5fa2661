"""Which layers an adapter changes: presets and patterns over names, and the error when one matches nothing. Names and
shapes only: the plan uses it before paddle is imported.

A *target* is ``(layer, parameter)``: a linear layer and its ``weight`` [in, out], or stacked experts and one of their
matrices [E, in, out]. Its public name is that of the layer, for experts ``<layer>.<parameter>``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from erniecore.api import ConfigError, nearest

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
#: layers of the language model: those of a vision part are adapted where a pattern or a preset of it names them
TEXT_PRESETS: dict[str, tuple[str, ...]] = {
    "attention": ATTENTION,
    "mlp": MLP,
    "all-linear": ATTENTION + MLP,
    "text": ATTENTION + MLP,
}
#: the vision tower, and what stands between it and the language model
VISION_PRESETS: dict[str, tuple[str, ...]] = {
    "tower": ("vision_model.*", "visual.*"),
    "resampler": ("resampler_model.*", "mlp_AR.*"),
}
PRESETS = {**TEXT_PRESETS, **VISION_PRESETS}


class Target(NamedTuple):
    """One matrix, or stack of matrices, that can be adapted."""

    layer: str
    parameter: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The public name: experts count as layers of their own."""
        return self.layer if self.parameter == "weight" else f"{self.layer}.{self.parameter}"

    @property
    def num_experts(self) -> int:
        """0 for a linear layer."""
        return self.shape[0] if len(self.shape) == 3 else 0

    def modules(self) -> list[str]:
        """The names of public checkpoints, where every expert is a module: ``experts.3.up_proj``."""
        if not self.num_experts:
            return [self.layer]
        return [f"{self.layer}.{expert}.{self.parameter}" for expert in range(self.num_experts)]


def of_shapes(shapes: Mapping[str, Sequence[int]]) -> list[Target]:
    """Everything in a model that can be adapted, from its parameters' names and shapes.

    Matrices ``<layer>.weight`` but for embeddings, heads and routers, which are used through their weights, and stacked
    experts ``<layer>.gate_proj``, ``.up_proj``, ``.down_proj``.
    """
    found = []
    for name, shape in shapes.items():
        layer, _, parameter = name.rpartition(".")
        linear = parameter == "weight" and len(shape) == 2 and not _read_only(layer)
        if linear or (len(shape) == 3 and parameter in MLP):
            found.append(Target(layer, parameter, tuple(shape)))
    return found


def _read_only(layer: str) -> bool:
    leaf = layer.rpartition(".")[2]
    return "embed" in leaf or leaf in ("lm_head", "head", "score", "gate", "router")


def choose(targets: Iterable[Target], patterns: Sequence[str]) -> list[Target]:
    """The targets that ``patterns`` name, in the model's order.

    Raises:
        ConfigError: patterns that match nothing, each with the nearest names.
    """
    known = list(targets)
    if not known:
        raise ConfigError.at("adapter.targets", "this model has no layers that a low-rank adapter can change")
    problems = [_nothing(known, pattern) for pattern in patterns if not any(_matches(t, pattern) for t in known)]
    if problems:
        raise ConfigError.at("adapter.targets", "; ".join(problems))
    return [target for target in known if any(_matches(target, pattern) for pattern in patterns)]


def choose_linear(targets: Iterable[Target], patterns: Sequence[str], kind: str) -> list[Target]:
    """Like :func:`choose`, of linear layers alone: for adapters that have no form for stacks of matrices.

    Raises:
        ConfigError: also for a pattern that names routed experts and nothing else.
    """
    found = choose(targets, patterns)
    for pattern in patterns:
        if all(target.num_experts for target in found if _matches(target, pattern)):
            message = f"{pattern!r} names routed experts alone, which {kind} has no form for; leave it out, or use lora"
            raise ConfigError.at("adapter.targets", message)
    return [target for target in found if not target.num_experts]


def _matches(target: Target, pattern: str) -> bool:
    if pattern in TEXT_PRESETS and "vision" in target.name:
        return False
    return any(
        fnmatchcase(target.name, word) or fnmatchcase(target.name, f"*.{word}")
        for word in PRESETS.get(pattern, (pattern,))
    )


def _nothing(known: Sequence[Target], pattern: str) -> str:
    leaves = [leaf for leaf in dict.fromkeys(t.name.rpartition(".")[2] for t in known) if not leaf.isdigit()]
    close = nearest(pattern, [*leaves, *PRESETS, *(target.name for target in known)])
    hint = f"did you mean {close}?" if close else "names end in " + ", ".join(leaves)
    return f"{pattern!r} matches no layer that can be adapted; {hint}"


def shortest_suffixes(adapted: Iterable[str], others: Iterable[str]) -> list[str]:
    """The shortest dotted endings that name all of ``adapted`` and none of ``others``."""
    taken = {ending for name in others for ending in _endings(name)}
    return sorted({next((e for e in _endings(name) if e not in taken), name) for name in adapted})


def _endings(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[start:]) for start in reversed(range(len(parts)))]
