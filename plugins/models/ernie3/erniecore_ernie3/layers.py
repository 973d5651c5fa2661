"""The parts of an ERNIE 3.0 layer, and what all layers of one pass share. Single-device code; projections are plain
``nn.Linear`` layers.

Letters: B batch, S positions of the segment, M of the memory, K = M + S (with a cache: cached and new), H width of the module,
h heads, d head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import paddle  # noqa: TID253
from erniecore_ernie45.layers import call, linear
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ops
from erniecore.api.layers import recompute
from erniecore.api.model import Cache
from erniecore_ernie3.architecture import Architecture, Block


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs that all layers of a pass share.

    Attributes:
        tables: head size -> cos, sin of the keys that come in, float32 [B, M + S, d / 2]; those of queries are the last S.
        bidirectional: every position attends to all keys, instead of to memory and past.
        startend_row_indices: int32 [B, 1, S, 1] or None, for packed rows. attention_mask: [B, K] or None, 0 masks a key.
        cache: keys and values of past positions, or None.
        recompute: "none", "full", "attention" or "core-attention".
    """

    tables: Mapping[int, tuple[Tensor, Tensor]]
    bidirectional: bool = False
    startend_row_indices: Tensor | None = None
    attention_mask: Tensor | None = None
    cache: Cache | None = None
    recompute: str = "none"


class Attention(nn.Layer):  # type: ignore[misc]
    """Attention over memory and segment, with rotary positions (arXiv:2104.09864)."""

    def __init__(self, arch: Architecture, block: Block, index: int) -> None:
        super().__init__()
        self.index, self.head_dim = index, block.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            linear(arch, block.hidden, block.hidden, True) for _ in range(4)
        )

    def forward(self, x_BSH: Tensor, memory_BMH: Tensor | None, context: Context) -> Tensor:
        """[B, S, H] and the memory, normed like x, [B, M, H] -> [B, S, H]."""
        source_BKH = x_BSH if memory_BMH is None else paddle.concat([memory_BMH, x_BSH], axis=1)
        cos, sin = context.tables[self.head_dim]
        length = x_BSH.shape[1]
        q_BShd = ops.apply_rope(self._heads(self.q_proj(x_BSH)), cos[:, -length:], sin[:, -length:])
        k_BKhd = ops.apply_rope(self._heads(self.k_proj(source_BKH)), cos, sin)
        v_BKhd = self._heads(self.v_proj(source_BKH))
        if context.cache is not None:
            k_BKhd, v_BKhd = context.cache.update(self.index, k_BKhd, v_BKhd)
        run = recompute if context.recompute == "core-attention" else call
        y_BShd = run(attend, q_BShd, k_BKhd, v_BKhd, context)
        return self.o_proj(y_BShd.reshape([0, 0, -1]))

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape([0, 0, -1, self.head_dim])


def attend(q_BShd: Tensor, k_BKhd: Tensor, v_BKhd: Tensor, context: Context) -> Tensor:
    """Softmax attention [B, S, h, d] under the context's masks.

    The causal operator lets query i attend to keys 0 .. i + K - S: all of the memory, then the past. With as many masked keys
    behind the others, that is every key for every query: the bidirectional mask.
    """
    mask_BK = context.attention_mask
    if context.bidirectional:
        (batch, length), keys = q_BShd.shape[:2], k_BKhd.shape[1]
        k_BKhd, v_BKhd = (paddle.concat([x, paddle.zeros_like(x[:, :length])], axis=1) for x in (k_BKhd, v_BKhd))
        real = paddle.ones([batch, keys], "int64") if mask_BK is None else mask_BK.astype("int64")
        mask_BK = paddle.concat([real, paddle.zeros([batch, length], "int64")], axis=1)
    return ops.attention(
        q_BShd, k_BKhd, v_BKhd, startend_row_indices=context.startend_row_indices, attention_mask=mask_BK
    )


class MLP(nn.Layer):  # type: ignore[misc]
    """Two matrices with GELU between them: down(gelu(up x))."""

    def __init__(self, arch: Architecture, block: Block) -> None:
        super().__init__()
        self.up_proj = linear(arch, block.hidden, block.mlp, True)
        self.down_proj = linear(arch, block.mlp, block.hidden, True)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(nn.functional.gelu(self.up_proj(x)))


class Layer(nn.Layer):  # type: ignore[misc]
    """Attention and MLP, each after a norm, dropped out and added to the residual stream."""

    def __init__(self, arch: Architecture, block: Block, index: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = Attention(arch, block, index)
        self.mlp = MLP(arch, block)
        self.input_layernorm = nn.LayerNorm(block.hidden, arch.layer_norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(block.hidden, arch.layer_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BSH: Tensor, memory_BMH: Tensor | None, context: Context) -> Tensor:
        """The residual stream [B, S, H] after this layer; the memory [B, M, H] is of an earlier segment, without a gradient."""
        normed_BMH = None if memory_BMH is None else self.input_layernorm(memory_BMH)
        run = recompute if context.recompute == "attention" else call
        attended_BSH: Any = run(self.self_attn, self.input_layernorm(x_BSH), normed_BMH, context)
        x_BSH = x_BSH + self.dropout(attended_BSH)
        return x_BSH + self.dropout(self.mlp(self.post_attention_layernorm(x_BSH)))


def run_layer(layer: Layer, x_BSH: Tensor, memory_BMH: Tensor | None, context: Context) -> Tensor:
    """One layer, recomputed as a whole in the backward pass when the context says so."""
    run = recompute if context.recompute == "full" else call
    out_BSH: Tensor = run(layer, x_BSH, memory_BMH, context)
    return out_BSH
