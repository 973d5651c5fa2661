"""ERNIE 4.5 as a causal language model: embedding, decoder layers, final norm, head. Single-device code; losses,
sampling and files are elsewhere. The MoE model derives from these classes.

Letters: B batch, S new positions, K cached and new positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import Json, ops
from erniecore.api.layers import recompute
from erniecore.api.model import Cache, ElasticSizes, Features
from erniecore_ernie45.architecture import Architecture
from erniecore_ernie45.context import Context, make_context
from erniecore_ernie45.layers import DecoderLayer, Embedding, RMSNorm, call, linear
from erniecore_ernie45.submodel import submodel_of

if TYPE_CHECKING:
    from erniecore.api.decoding import DecoderPlan

GRANULARITIES = ("none", "full", "attention", "core-attention")


class Decoder(nn.Layer):  # type: ignore[misc]
    """Embedding, layers and the final norm; the norm is applied by the caller."""

    def __init__(self, arch: Architecture, make_layer: Callable[[int], DecoderLayer]) -> None:
        super().__init__()
        self.embed_tokens = Embedding(arch)
        self.layers = nn.LayerList([make_layer(index) for index in range(arch.num_hidden_layers)])
        self.norm = RMSNorm(arch.hidden_size, arch.rms_norm_eps)

    def forward(self, input_ids: Tensor, context: Context) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """ids [B, S] -> the stream [B, S, H] before the final norm, and what each layer measured."""
        x_BSH, measured = self.embed(input_ids, context), []
        for place, layer in enumerate(self.layers):
            if context.submodel is not None and not context.submodel.runs(place):
                measured.append(())
                continue
            x_BSH, *rest = run_layer(layer, x_BSH, context)
            measured.append(tuple(rest))
            x_BSH = self.between(place, x_BSH, context)
        return x_BSH, measured

    def between(self, place: int, x_BSH: Tensor, context: Context) -> Tensor:
        """What the next layer gets of what the layer at ``place`` gave out, [B, S, H]: the same."""
        return x_BSH

    def embed(self, input_ids: Tensor, context: Context) -> Tensor:
        """What enters the first layer, [B, S, H]."""
        x_BSH: Tensor = self.embed_tokens(input_ids)
        return x_BSH


def run_layer(layer: DecoderLayer, x_BSH: Tensor, context: Context) -> tuple[Tensor, ...]:
    """One layer, recomputed as a whole in the backward pass when the context says so."""
    run = recompute if context.recompute == "full" else call
    outputs: tuple[Tensor, ...] = run(layer, x_BSH, context)
    return outputs


class HeadBias(nn.Layer):  # type: ignore[misc]
    """The bias of a head whose weight is the embedding."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = self.create_parameter([vocab_size], dtype=paddle.get_default_dtype(), is_bias=True)


class Ernie45ForCausalLM(nn.Layer):  # type: ignore[misc]
    """The dense model; implements ``erniecore.api.model.CausalLM``.

    Attributes:
        architecture: the config.json that it was built from.
        recompute_granularity: see :meth:`set_recompute`.
    """

    def __init__(
        self, arch: Architecture, make_decoder: Callable[[], Decoder] | None = None, *, dtype: str = "float32"
    ) -> None:
        """``make_decoder``: builds another stack of layers than the dense one."""
        super().__init__()
        self.arch = arch
        self.architecture: Json = arch.source
        self.recompute_granularity = "none"
        with default_dtype(dtype):
            self.model = make_decoder() if make_decoder else Decoder(arch, lambda index: DecoderLayer(arch, index))
            self.lm_head: Any = self._make_head()

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
        layers: Tensor | None = None,
        experts: Tensor | None = None,
        num_selected: Tensor | None = None,
    ) -> Features:
        """Everything below the head; see ``make_context`` for what is assumed when an argument is left out, and
        ``erniecore.api.model.ElasticModel`` for the last three."""
        context = self.make_context(
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            startend_row_indices=startend_row_indices,
            cache=cache,
        )
        submodel = submodel_of(layers, experts, num_selected)
        return self.run(input_ids, context if submodel is None else replace(context, submodel=submodel))

    def elastic_sizes(self) -> ElasticSizes | None:
        """Layers alone: there are no experts."""
        return ElasticSizes(self.arch.num_hidden_layers)

    def expert_loads(self) -> Tensor | None:
        """There are no experts."""
        return None

    def run(self, input_ids: Tensor, context: Context) -> Features:
        """The forward pass proper."""
        x_BSH, _ = self.model(input_ids, context)
        return Features(self.model.norm(x_BSH))

    def make_context(self, input_ids: Tensor, *, cache: Cache | None, **masks: Tensor | None) -> Context:
        """Shared inputs of the layers; recomputation only where there is a backward pass."""
        learning = self.training and cache is None and paddle.is_grad_enabled()
        granularity = self.recompute_granularity if learning else "none"
        head_dim, theta = self.arch.head_dim, self.arch.rope_theta
        return make_context(input_ids, head_dim=head_dim, theta=theta, cache=cache, recompute=granularity, **masks)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """float32 logits [B, S, V]."""
        features = self.features(
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            startend_row_indices=startend_row_indices,
            cache=cache,
        )
        return self.logits(features.hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [..., V] of hidden states [..., H] after the final norm."""
        weight, transposed, bias = self.head()
        return ops.head_logits(hidden, weight, transposed=transposed, bias=bias)

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """(weight, transposed, bias): the embedding [V, H] when tied, else [H, V] of a linear layer or [V, H] of a packed one."""
        bias = None if self.lm_head is None else self.lm_head.bias
        if self.arch.tie_word_embeddings:
            return self.model.embed_tokens.weight, True, bias
        return self.lm_head.weight, not isinstance(self.lm_head, nn.Linear), bias

    def decoder_plan(self) -> DecoderPlan | None:
        from erniecore_ernie45.decoding import dense_block, plan_of

        return plan_of(self, Ernie45ForCausalLM, {DecoderLayer: dense_block})

    def hold_embedding(self) -> None:
        """See ``CompactEmbedding`` of ``erniecore.api.decoding``."""
        if isinstance(self.model.embed_tokens, Embedding):
            self.model.embed_tokens.hold()

    def after_step(self, *, rate: float = 0.0) -> None:
        """Nothing to do after an optimizer step."""

    def set_recompute(self, granularity: str) -> None:
        """What the backward pass makes again instead of reading it from memory: "none", "full" (whole layers),
        "attention" (attention blocks) or "core-attention". Without effect where nothing is learned."""
        if granularity not in GRANULARITIES:
            raise ValueError(f"recompute is one of {', '.join(GRANULARITIES)}, not {granularity!r}")
        self.recompute_granularity = granularity

    def _make_head(self) -> nn.Layer | None:
        arch = self.arch
        if not arch.tie_word_embeddings:
            return linear(arch, arch.hidden_size, arch.vocab_size, arch.head_bias)
        return HeadBias(arch.vocab_size) if arch.head_bias else None


@contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """Parameters made inside get ``dtype``."""
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        yield
    finally:
        paddle.set_default_dtype(before)
