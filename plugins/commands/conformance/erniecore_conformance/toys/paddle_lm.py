"""A real decoder-only language model at toy size, written as plainly as possible. Checks import it when they run, never
when they are listed. Layer names are those of public checkpoints, so adapters find their targets.

Letters: B batch, S sequence, H hidden, N heads, D head size, K keys, V vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paddle  # noqa: TID253  (imported by the checks' functions only)
from paddle import nn  # noqa: TID253
from paddle.nn import functional as F  # noqa: TID253

from erniecore.api.model import Features
from erniecore_conformance.toys.architecture import TOY_ARCHITECTURE

if TYPE_CHECKING:
    from erniecore.api import Json
    from erniecore.api.model import Cache
    from erniecore.api.testing import Tensor


def turns(position_BS: Tensor, size: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions for heads of ``size``, [B, S, 1, D/2] each; one pair for all layers."""
    half = size // 2
    frequency = 100.0 ** (-paddle.arange(half, dtype="float32") / half)
    angle = (position_BS.astype("float32").unsqueeze(-1) * frequency).unsqueeze(2)
    return paddle.cos(angle).astype(dtype), paddle.sin(angle).astype(dtype)


def rotate(x_BSND: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on pairs (d, d + D/2)."""
    a, b = x_BSND.chunk(2, axis=-1)
    return paddle.concat([a * cos - b * sin, a * sin + b * cos], axis=-1)


def visible(S: int, K: int, mask_BK: Tensor | None, ends_B1K1: Tensor | None) -> Tensor:
    """bool [B or 1, 1, S, K]: which keys a query sees."""
    query, key = paddle.arange(K - S, K).unsqueeze(-1), paddle.arange(K).unsqueeze(0)
    see = (key <= query).reshape([1, 1, S, K])
    if mask_BK is not None:
        see = see & (mask_BK != 0).unsqueeze([1, 2])
    if ends_B1K1 is not None:
        see = see & (query < ends_B1K1.astype("int64").transpose([0, 1, 3, 2]))
    return see


class ToyAttention(nn.Layer):  # type: ignore[misc]
    """Causal self-attention, one key head per query head."""

    def __init__(self, hidden: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(hidden, hidden, bias_attr=False))

    def forward(
        self,
        x_BSH: Tensor,
        turned: tuple[Tensor, Tensor],
        see: Tensor,
        layer: int,
        cache: Cache | None,
    ) -> Tensor:
        """[B, S, H] -> [B, S, H]; ``turned``: of :func:`turns`, ``see``: of :func:`visible`."""
        B, S, H = x_BSH.shape
        q, k, v = (p(x_BSH).reshape([B, S, self.num_heads, -1]) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *turned), rotate(k, *turned)
        if cache is not None:
            k, v = cache.update(layer, k, v)
        q, k, v = (x.transpose([0, 2, 1, 3]) for x in (q, k, v))
        scores = paddle.matmul(q, k, transpose_y=True) * (H // self.num_heads) ** -0.5
        scores = paddle.where(see, scores, paddle.full_like(scores, -1e9))
        mixed = paddle.matmul(F.softmax(scores, axis=-1), v).transpose([0, 2, 1, 3])
        return self.o_proj(mixed.reshape([B, S, H]))


class ToyMLP(nn.Layer):  # type: ignore[misc]
    """A gated feed-forward block."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias_attr=False)
        self.up_proj = nn.Linear(hidden, inner, bias_attr=False)
        self.down_proj = nn.Linear(inner, hidden, bias_attr=False)

    def forward(self, x_BSH: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        return self.down_proj(F.silu(self.gate_proj(x_BSH)) * self.up_proj(x_BSH))


class ToyBlock(nn.Layer):  # type: ignore[misc]
    """Pre-norm attention and feed-forward."""

    def __init__(self, architecture: Json) -> None:
        super().__init__()
        hidden = architecture["hidden_size"]
        self.input_layernorm = nn.LayerNorm(hidden)
        self.self_attn = ToyAttention(hidden, architecture["num_attention_heads"])
        self.post_attention_layernorm = nn.LayerNorm(hidden)
        self.mlp = ToyMLP(hidden, architecture["intermediate_size"])


class ToyLM(nn.Layer):  # type: ignore[misc]
    """``types.CausalLM``; also callable on ids."""

    def __init__(self, architecture: Json = TOY_ARCHITECTURE) -> None:
        super().__init__()
        self.architecture = architecture
        V, H = architecture["vocab_size"], architecture["hidden_size"]
        self.embed_tokens = nn.Embedding(V, H)
        self.layers = nn.LayerList([ToyBlock(architecture) for _ in range(architecture["num_hidden_layers"])])
        self.norm = nn.LayerNorm(H)
        self.lm_head = nn.Linear(H, V, bias_attr=False)

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
        **inputs: Tensor,
    ) -> Features:
        """[B, S] -> hidden [B, S, H]."""
        past = cache.length if cache is not None else 0
        if position_ids is None:
            position_ids = paddle.arange(past, past + input_ids.shape[1]).unsqueeze(0).expand(input_ids.shape)
        x, S = self.embed(input_ids, **inputs), input_ids.shape[1]
        turned = turns(position_ids, x.shape[-1] // self.architecture["num_attention_heads"], x.dtype)
        see = visible(S, past + S, attention_mask, startend_row_indices)
        for i, block in enumerate(self.layers):
            x = x + block.self_attn(block.input_layernorm(x), turned, see, i, cache)
            x = x + block.mlp(block.post_attention_layernorm(x))
        return Features(self.norm(x))

    def embed(self, input_ids: Tensor) -> Tensor:
        """What enters the first block, [B, S, H]."""
        x_BSH: Tensor = self.embed_tokens(input_ids)
        return x_BSH

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V]."""
        return self.lm_head(hidden).astype("float32")

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """The output matrix [H, V]."""
        return self.lm_head.weight, False, None

    def after_step(self, *, rate: float = 0.0) -> None:
        """Does nothing: the model has no router."""

    def forward(self, input_ids: Tensor, **options: Tensor) -> Tensor:
        """[B, S] -> logits [B, S, V]."""
        return self.logits(self.features(input_ids, **options).hidden)


def toy_model(seed: int = 0) -> ToyLM:
    """A :class:`ToyLM` whose weights depend on ``seed`` alone."""
    paddle.seed(seed)
    return ToyLM()
