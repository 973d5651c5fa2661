"""The parts of an ERNIE 4.5 decoder layer. Single-device code: widths are read from the weights, so that a
parallel plugin may shard them. Projections are plain ``nn.Linear`` layers under their public names.

Letters: B batch, S new positions, K cached and new positions, H hidden, h query heads, k key and value heads, d head
size, I width of the MLP.
"""

from __future__ import annotations

from typing import Any, Protocol

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253
from paddle.base.framework import EagerParamBase  # noqa: TID253

from erniecore.api import ops
from erniecore.api.layers import Linear, filled, recompute, stored_values
from erniecore_ernie45.architecture import Architecture
from erniecore_ernie45.context import Context
from erniecore_ernie45.residual import RMSNorm as RMSNorm
from erniecore_ernie45.residual import make_norm, make_residual


class Sizes(Protocol):
    """What embedding and projections need to know of an architecture, this one or another."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        ...

    @property
    def hidden_size(self) -> int:
        """Columns of the embedding."""
        ...

    @property
    def initializer_range(self) -> float:
        """Deviation of new matrices."""
        ...


def normal(arch: Sizes) -> Any:
    """Initializer of every matrix: normal(0, ``initializer_range``)."""
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, arch.initializer_range))


def linear(arch: Sizes, num_in: int, num_out: int, bias: bool) -> nn.Linear:
    """A projection, weight [in, out]; a bias starts at zero."""
    return Linear(num_in, num_out, weight_attr=normal(arch), bias_attr=None if bias else False)


class Embedding(nn.Layer):  # type: ignore[misc]
    """Token embedding, weight [V, H]. Every row learns, the padding row included.

    Attributes:
        compact: the weight is frozen in bfloat16 while the model computes in float32.
    """

    compact = False

    def __init__(self, arch: Sizes) -> None:
        super().__init__()
        shape = [arch.vocab_size, arch.hidden_size]
        self.weight = self.create_parameter(shape, attr=normal(arch), dtype=paddle.get_default_dtype())

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 [...] -> [..., H]."""
        rows = ops.embedding(ids, self.weight)
        return rows.astype("float32") if self.compact else rows

    def hold(self) -> None:
        """From here on the weight is frozen in bfloat16 and rows are float32, if that changes no value. An empty weight that a
        file has in bfloat16 is that of the mapped file."""
        stored = stored_values(self.weight, "bfloat16")
        halves = ops.exact_bfloat16(filled(self.weight)) if stored is None else stored[0]
        if halves is not None:
            del self.weight
            self.weight = EagerParamBase.from_tensor(halves, trainable=False)
            self.compact = True


class Attention(nn.Layer):  # type: ignore[misc]
    """Causal attention with shared key and value heads and rotary positions (arXiv:2104.09864)."""

    def __init__(self, arch: Architecture, index: int) -> None:
        super().__init__()
        width, shared = arch.num_attention_heads * arch.head_dim, arch.num_key_value_heads * arch.head_dim
        self.index, self.head_dim = index, arch.head_dim
        self.q_proj = linear(arch, arch.hidden_size, width, arch.use_bias)
        self.k_proj = linear(arch, arch.hidden_size, shared, arch.use_bias)
        self.v_proj = linear(arch, arch.hidden_size, shared, arch.use_bias)
        self.o_proj = linear(arch, width, arch.hidden_size, arch.use_bias)

    def forward(self, x_BSH: Tensor, context: Context) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        q_BShd = self.q_proj(x_BSH).reshape([0, 0, -1, self.head_dim])
        k_BSkd = self.k_proj(x_BSH).reshape([0, 0, -1, self.head_dim])
        v_BKkd = self.v_proj(x_BSH).reshape([0, 0, -1, self.head_dim])
        q_BShd = ops.apply_rope(q_BShd, context.cos, context.sin, halves=context.halves)
        k_BKkd = ops.apply_rope(k_BSkd, context.cos, context.sin, halves=context.halves)
        if context.cache is not None:
            k_BKkd, v_BKkd = context.cache.update(self.index, k_BKkd, v_BKkd)
        run = recompute if context.recompute == "core-attention" else call
        y_BShd = run(self.weigh, q_BShd, k_BKkd, v_BKkd, context)
        return self.o_proj(y_BShd.reshape([0, 0, -1]))

    def weigh(self, q_BShd: Tensor, k_BKkd: Tensor, v_BKkd: Tensor, context: Context) -> Tensor:
        """Values [B, S, h, d] by softmax of the scores, under the masks of the context."""
        return ops.attention(
            q_BShd,
            k_BKkd,
            v_BKkd,
            startend_row_indices=context.startend_row_indices,
            attention_mask=context.attention_mask,
        )


class MLP(nn.Layer):  # type: ignore[misc]
    """down(silu(gate x) * up x) (arXiv:2002.05202)."""

    def __init__(self, arch: Architecture, width: int) -> None:
        super().__init__()
        self.gate_proj = linear(arch, arch.hidden_size, width, arch.use_bias)
        self.up_proj = linear(arch, arch.hidden_size, width, arch.use_bias)
        self.down_proj = linear(arch, width, arch.hidden_size, arch.use_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        product = ops.swiglu(gate, up)
        with ops.rematerialized(product, lambda: ops.swiglu(gate, up)):
            return self.down_proj(product)


class DecoderLayer(nn.Layer):  # type: ignore[misc]
    """Attention and MLP, each after a norm and added to the stream; ``residual`` is how (see ``residual.py``).

    Attributes:
        attention: what attention is made of.
    """

    attention: type[Attention] = Attention

    def __init__(self, arch: Architecture, index: int, mlp: nn.Layer | None = None) -> None:
        super().__init__()
        self.self_attn = self.attention(arch, index)
        self.mlp = MLP(arch, arch.intermediate_size) if mlp is None else mlp
        self.input_layernorm, self.post_attention_layernorm = make_norm(arch, index), make_norm(arch, index)
        self.residual = make_residual(arch, index)

    def forward(self, x_BSH: Tensor, context: Context) -> tuple[Tensor, ...]:
        """The stream after this layer, then whatever else the layer measured (nothing here)."""
        x_BSH = self.attend(x_BSH, context)
        normed_BSH = self.post_attention_layernorm(x_BSH)
        with ops.rematerialized(normed_BSH, lambda: self.post_attention_layernorm(x_BSH)):
            return (self.residual(x_BSH, self.mlp(normed_BSH)),)

    def attend(self, x_BSH: Tensor, context: Context) -> Tensor:
        """The attention block with its residual connection."""
        normed_BSH = self.input_layernorm(x_BSH)
        if context.recompute == "attention":
            return self.residual(x_BSH, recompute(self.self_attn, normed_BSH, context))
        if context.recompute == "core-attention":
            return self.residual(x_BSH, self.self_attn(normed_BSH, context))
        with ops.rematerialized(normed_BSH, lambda: self.input_layernorm(x_BSH)):
            return self.residual(x_BSH, self.self_attn(normed_BSH, context))


def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What stands in for ``recompute`` where nothing is recomputed."""
    return function(*args, **kwargs)
