"""The model: embedding, pre-norm decoder layers, final norm, head. Single-device code.

Letters: B batch, S new positions, K cached and new positions, H hidden, h heads, d head size, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle import Tensor, nn

from erniecore.api import Json, ops
from erniecore.api.model import Cache, Features

#: attention of one layer: (index, q, k, v) -> mixed values, all [B, S, h, d]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Norm(nn.Layer):
    """w * x / sqrt(mean(x^2) + epsilon) (arXiv:1910.07467)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = self.create_parameter([size], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return ops.rms_norm(x, self.weight, self.epsilon)


class Attention(nn.Layer):
    """Projections around the attention of the whole model."""

    def __init__(self, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.head_size = hidden // num_heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, linear(hidden, hidden))

    def forward(self, x_BSH: Tensor, index: int, attend: Attend) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        q, k, v = (p(x_BSH).reshape([0, 0, -1, self.head_size]) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(index, q, k, v).reshape([0, 0, -1]))


class MLP(nn.Layer):
    """down(silu(gate x) * up x) (arXiv:2002.05202)."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        return self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))


class Block(nn.Layer):
    """One pre-norm decoder layer."""

    def __init__(self, architecture: Json) -> None:
        super().__init__()
        hidden, epsilon = architecture["hidden_size"], architecture["rms_norm_eps"]
        self.input_layernorm = Norm(hidden, epsilon)
        self.self_attn = Attention(hidden, architecture["num_attention_heads"])
        self.post_attention_layernorm = Norm(hidden, epsilon)
        self.mlp = MLP(hidden, architecture["intermediate_size"])

    def forward(self, x_BSH: Tensor, index: int, attend: Attend) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        x_BSH = x_BSH + self.self_attn(self.input_layernorm(x_BSH), index, attend)
        return x_BSH + self.mlp(self.post_attention_layernorm(x_BSH))


class AcmeLmModel(nn.Layer):
    """A decoder-only language model; an ``erniecore.api.model.CausalLM``."""

    def __init__(self, architecture: Json) -> None:
        super().__init__()
        self.architecture = architecture
        V, H = architecture["vocab_size"], architecture["hidden_size"]
        self.embed_tokens = nn.Embedding(V, H, weight_attr=normal())
        self.layers = nn.LayerList([Block(architecture) for _ in range(architecture["num_hidden_layers"])])
        self.norm = Norm(H, architecture["rms_norm_eps"])
        self.lm_head = linear(H, V)

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Features:
        """Everything below the head; positions count on from the cache when none are given."""
        B, S = input_ids.shape
        if position_ids is None:
            past = 0 if cache is None else cache.length
            position_ids = paddle.arange(past, past + S, dtype="int64").unsqueeze(0).expand([B, S])
        head_size = self.architecture["hidden_size"] // self.architecture["num_attention_heads"]
        cos, sin = ops.rope_tables(position_ids, head_size, self.architecture["rope_theta"])

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = ops.apply_rope(q, cos, sin), ops.apply_rope(k, cos, sin)
            if cache is not None:
                k, v = cache.update(index, k, v)
            return ops.attention(q, k, v, startend_row_indices=startend_row_indices, attention_mask=attention_mask)

        x_BSH = self.embed_tokens(input_ids)
        for index, block in enumerate(self.layers):
            x_BSH = block(x_BSH, index, attend)
        return Features(self.norm(x_BSH))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [..., V]."""
        return self.lm_head(hidden).astype("float32")

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """The matrix [H, V]."""
        return self.lm_head.weight, False, None

    def after_step(self, *, rate: float = 0.0) -> None:
        """Does nothing: the model has no router."""

    def forward(self, input_ids: Tensor, **options: Any) -> Tensor:
        """ids [B, S] -> float32 logits [B, S, V]."""
        return self.logits(self.features(input_ids, **options).hidden)


def normal() -> Any:
    """Initializer of every matrix."""
    return paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, 0.02))


def linear(num_in: int, num_out: int) -> nn.Linear:
    """A projection without bias, weight [in, out]."""
    return nn.Linear(num_in, num_out, weight_attr=normal(), bias_attr=False)


def build(architecture: Json, dtype: str) -> AcmeLmModel:
    """A model with new weights of `dtype`."""
    model = AcmeLmModel(architecture)
    model.to(dtype=dtype)
    return model
