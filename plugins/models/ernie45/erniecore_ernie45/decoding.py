"""The dense model as a ``DecoderPlan``, from the layers that it has now. Nothing is computed or copied here; layers that
another plugin replaced by ones that cannot be described make the answer None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import paddle  # noqa: TID253

from erniecore.api import ops
from erniecore.api.decoding import (
    DecoderBlock,
    DecoderPlan,
    Projection,
    ProjectionLayer,
    computes_as,
    projection_of,
    without_hooks,
)
from erniecore.api.quantizer import StoredWeight
from erniecore_ernie45.layers import MLP, Attention, Embedding, RMSNorm
from erniecore_ernie45.residual import Residual

#: what describes a layer of a class; None: it is not what it was
Describe = Callable[[Any], DecoderBlock | None]


def plan_of(model: Any, kind: Any, layers: Mapping[Any, Describe]) -> DecoderPlan | None:
    """The plan of a model that computes as a ``kind``, with layers that are exactly of these classes."""
    if not computes_as(model, kind) or not without_hooks([model, *model.sublayers()]):
        return None
    stack = model.model
    table = table_of(stack.embed_tokens)
    if table is None or type(stack.norm) is not RMSNorm:
        return None
    described = [layers[type(layer)](layer) if type(layer) in layers else None for layer in stack.layers]
    blocks, head = tuple(block for block in described if block is not None), head_of(model)
    if head is None or len(blocks) < len(described):
        return None
    arch, (embedding, scales) = model.arch, table
    with paddle.no_grad():
        frequencies = ops.rope_frequencies(arch.head_dim, arch.rope_theta)
    rest = arch.head_dim, arch.rms_norm_eps, frequencies, scales
    return DecoderPlan(embedding, blocks, stack.norm.weight, head, *rest)


def table_of(layer: Any) -> tuple[Any, Any] | None:
    """The weight of an embedding, and the scales of a quantized one or None; None for a layer that cannot be described."""
    if type(layer) is Embedding:
        return layer.weight, None
    described = layer.projection("weight") if isinstance(layer, ProjectionLayer) else None
    if described is None:
        return None
    weight = described.weight
    return (weight.qweight, weight.scales) if isinstance(weight, StoredWeight) else (weight, None)


def head_of(model: Any) -> Projection | None:
    """The output head; None for one that is not the model's own."""
    layer, tied = model.lm_head, model.arch.tie_word_embeddings
    owner = model.model.embed_tokens if tied else layer
    if isinstance(owner, ProjectionLayer):
        described = owner.projection("weight")
        return described if layer is None or described is None else replace(described, bias=layer.bias)
    if layer is not None and not (tied or ops.is_plain_linear(layer)):
        return None
    weight, transposed, bias = model.head()
    return Projection(weight, weight.shape[0 if transposed else 1], bias, transposed)


def dense_block(layer: Any) -> DecoderBlock | None:
    """A layer with an MLP."""
    mlp = mlp_of(layer.mlp)
    return None if mlp is None else block_of(layer, {"mlp": mlp})


def block_of(layer: Any, rest: Mapping[str, Any]) -> DecoderBlock | None:
    """A layer, with ``rest`` as its second half."""
    attention, norms = layer.self_attn, (layer.input_layernorm, layer.post_attention_layernorm)
    if type(attention) is not Attention or any(type(norm) is not RMSNorm for norm in norms):
        return None
    if type(layer.residual) is not Residual:
        return None
    q, k, v, o = (projection_of(getattr(attention, f"{name}_proj")) for name in "qkvo")
    if q is None or k is None or v is None or o is None:
        return None
    return DecoderBlock(norm=norms[0].weight, q=q, k=k, v=v, o=o, mlp_norm=norms[1].weight, **rest)


def mlp_of(layer: Any) -> tuple[Projection, Projection, Projection] | None:
    """Gate, up and down."""
    if type(layer) is not MLP:
        return None
    gate, up, down = (projection_of(getattr(layer, f"{name}_proj")) for name in ("gate", "up", "down"))
    return None if gate is None or up is None or down is None else (gate, up, down)
