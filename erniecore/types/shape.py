"""Sizes of a decoder as the plan needs them: what one token costs in memory and products. Plugins fill it in; no names of
weights, no settings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One decoder layer.

    Attributes:
        heads, kv_heads, head_dim: of the attention.
        mlp: width of the gated MLP that every token passes: the dense one, or the shared experts; 0: none.
        experts, selected, expert: number of routed experts, how many a token takes, and the width of one; 0: none.
        idle: width of as many experts more that no token of text takes: frozen, they only lie in memory.
    """

    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    experts: int = 0
    selected: int = 0
    expert: int = 0
    idle: int = 0


@dataclass(frozen=True, slots=True)
class VisionShape:
    """What reads images before the decoder, in numbers of activations per patch.

    Attributes:
        depth: blocks of the tower. hidden: their width. block: what one keeps for its backward pass. ends: what is kept before
            and behind the blocks. joint: what is kept between tower and decoder. passing: what exists at a time while nothing is
            kept.
        patches: that become one token of an image.
        tower, joints: beginnings of the names of their parameters.
    """

    depth: int
    hidden: int
    block: int
    ends: int
    joint: int
    passing: int
    patches: int
    tower: str
    joints: str


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A causal language model.

    Attributes:
        hidden, vocab: width of the stream; tokens. tied: the head's weight is the embedding.
        layers: in order. mtp_layers: multi-token-prediction layers, which only training runs.
        beside: parameters that no token of text passes, but for experts: frozen, and whole on every rank.
        vision: what reads images; None where nothing does.
    """

    hidden: int
    vocab: int
    tied: bool
    layers: tuple[LayerShape, ...]
    mtp_layers: tuple[LayerShape, ...] = ()
    beside: int = 0
    vision: VisionShape | None = None
