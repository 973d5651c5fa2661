"""Multiplications and additions of a step. A product of [a, b] and [b, c] counts 2abc; norms and activations count nothing.

Per token, with P the parameters that it meets in products, A those of an adapter (part of P), n the mean number of keys
that a token sees, and 4 n q per layer for scores and values:

* forward F = 2 P + Σ_layers 4 n q; causal rows of S have n = S / 2
* backward: 2 F when everything is trained; under an adapter F + 2 A, since frozen weights need no gradient
* recomputation of whole layers adds the forward pass of the layers, that of attention blocks their part
* a reference that is run beside the policy adds F
"""

from __future__ import annotations

from dataclasses import dataclass

from erniecore.api.model import DecoderShape


@dataclass(frozen=True, slots=True)
class Flops:
    """Per token: ``forward``, ``backward``, ``again`` (recomputed), ``reference``."""

    forward: float
    backward: float
    again: float
    reference: float

    @property
    def total(self) -> float:
        """Of one token in training."""
        return self.forward + self.backward + self.again + self.reference


def attention_flops(shape: DecoderShape, length: int) -> float:
    """Scores and weighted values, forward, per token of a causal row of ``length``."""
    return sum(4 * (length / 2) * layer.heads * layer.head_dim for layer in shape.layers)


def attention_weights(shape: DecoderShape) -> int:
    """Parameters of the projections of all attention blocks."""
    hidden = shape.hidden
    return sum(2 * hidden * layer.head_dim * (layer.heads + layer.kv_heads) for layer in shape.layers)


def step_flops(
    shape: DecoderShape,
    *,
    active: int,
    length: int,
    recompute: str = "none",
    adapter: int | None = None,
    reference: bool = False,
) -> Flops:
    """Of one token in training.

    Args:
        active: parameters that a token passes, embedding included: that of an untied model is a lookup, not a product.
        length: of the rows. adapter: parameters that an adapter trains; None: everything is trained.
        reference: the method runs a reference beside the policy.
    """
    table = shape.vocab * shape.hidden
    products = active - (0 if shape.tied else table)
    scores = attention_flops(shape, length)
    forward = 2.0 * products + scores
    layers = forward - 2.0 * table
    again = {"full": layers, "attention": 2.0 * attention_weights(shape) + scores, "core-attention": scores}
    return Flops(
        forward=forward,
        backward=2 * forward if adapter is None else forward + 2.0 * adapter,
        again=again.get(recompute, 0.0),
        reference=forward if reference else 0.0,
    )
