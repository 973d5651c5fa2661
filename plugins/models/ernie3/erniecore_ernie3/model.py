"""ERNIE 3.0 (arXiv:2107.02137): a universal module whose layers all tasks share, and on top one module for understanding and
one for generation. Single-device code; losses, sampling and files are elsewhere.

A pass for understanding attends to both sides in all its layers, one for generation to the past and to the recurrence memory.
Where the paper has the relative positions of Transformer-XL, this has rotary ones, which are relative too; norms come before
the blocks.

Letters: B batch, S positions of the segment, M of the memory, K = M + S (with a cache: cached and new), H width of the universal
module, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import paddle  # noqa: TID253
from erniecore_ernie45.context import end_rows_of_restarts
from erniecore_ernie45.layers import Embedding, linear
from erniecore_ernie45.model import GRANULARITIES, default_dtype
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import Json, ops
from erniecore.api.model import Cache, Features
from erniecore_ernie3.architecture import Architecture
from erniecore_ernie3.layers import Context, Layer, run_layer
from erniecore_ernie3.orders import num_orders

#: of each layer, [B, M, width of its module], without gradients
Memory: TypeAlias = tuple[Tensor, ...]


class Recurrent(NamedTuple):
    """A segment's hidden states [B, S, H], ready for the head, and the memory for the segment behind it."""

    hidden: Tensor
    memory: Memory


class Universal(nn.Layer):  # type: ignore[misc]
    """Embedding and the layers that all tasks share."""

    def __init__(self, arch: Architecture, dropout: float) -> None:
        super().__init__()
        self.embed_tokens = Embedding(arch)
        self.layers = nn.LayerList(
            [Layer(arch, arch.universal, index, dropout) for index in range(arch.num_universal_layers)]
        )


class TaskModule(nn.Layer):  # type: ignore[misc]
    """Layers of one task, with projections where they have another width, and the final norm."""

    def __init__(self, arch: Architecture, dropout: float) -> None:
        super().__init__()
        wide, narrow = arch.hidden_size, arch.task.hidden
        self.in_proj: Any = linear(arch, wide, narrow, True) if arch.projects else None
        first = arch.num_universal_layers
        self.layers = nn.LayerList(
            [Layer(arch, arch.task, first + index, dropout) for index in range(arch.num_task_layers)]
        )
        self.norm = nn.LayerNorm(narrow, arch.layer_norm_eps)
        self.out_proj: Any = linear(arch, narrow, wide, True) if arch.projects else None


class Heads(nn.Layer):  # type: ignore[misc]
    """Classifiers over the first position of the module for understanding."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.reorder = linear(arch, arch.hidden_size, num_orders(arch.max_segments), True)
        self.distance = linear(arch, arch.hidden_size, 3, True)
        self.labels: Any = linear(arch, arch.hidden_size, arch.num_labels, True) if arch.num_labels else None


class Ernie3(nn.Layer):  # type: ignore[misc]
    """Implements ``erniecore.api.model.CausalLM`` by the module for generation.

    Attributes:
        architecture: the config.json that it was built from.
        nlu, heads: None in a model for generation alone.
    """

    def __init__(self, arch: Architecture, *, dropout: float = 0.0, dtype: str = "float32") -> None:
        super().__init__()
        self.arch, self.recompute_granularity = arch, "none"
        self.architecture: Json = arch.source
        with default_dtype(dtype):
            self.model = Universal(arch, dropout)
            self.nlg = TaskModule(arch, dropout)
            self.nlu: Any = TaskModule(arch, dropout) if arch.understands else None
            self.heads: Any = Heads(arch) if arch.understands else None

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Features:
        """Everything below the head, for generation. Positions default to 0, 1, 2, … going on where a cache ends; positions that
        restart inside a row mean packed samples, unless a mask or end rows say otherwise."""
        (batch, length), past = input_ids.shape, 0 if cache is None else cache.length
        if past and startend_row_indices is not None:
            raise ValueError("startend_row_indices describe a whole row; they cannot be combined with a filled cache")
        if position_ids is None:
            position_ids = _positions(batch, past, length)
        elif cache is None and attention_mask is None and startend_row_indices is None:
            startend_row_indices = end_rows_of_restarts(position_ids)
        context = self._context(
            position_ids, startend_row_indices=startend_row_indices, attention_mask=attention_mask, cache=cache
        )
        return Features(self._run(self.nlg, input_ids, context, None)[0])

    def recur(
        self,
        input_ids: Tensor,
        *,
        memory: Memory | None = None,
        start: int = 0,
        attention_mask: Tensor | None = None,
    ) -> Recurrent:
        """One segment of a document, for generation, behind what the memory holds of the segments before.

        Args:
            input_ids: int64 [B, S]. start: position of the first of them in its document.
            memory: what the call for the segment before returned; None: there was none.
            attention_mask: [B, S], 0 at padding on the right; rows that end in a segment have no further ones.
        """
        (batch, length), past = input_ids.shape, memory[0].shape[1] if memory else 0
        if attention_mask is not None and past:
            attention_mask = paddle.concat([paddle.ones([batch, past], attention_mask.dtype), attention_mask], axis=1)
        context = self._context(_positions(batch, start - past, past + length), attention_mask=attention_mask)
        hidden, kept = self._run(self.nlg, input_ids, context, memory)
        return Recurrent(hidden, kept)

    def understand(self, input_ids: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states [B, S, H] of the module for understanding: every position attends to all of its row but padding.

        Raises:
            ValueError: this is a model for generation alone.
        """
        if self.nlu is None:
            raise ValueError("this model has no module for understanding: its config.json has no `nlu` in task_modules")
        batch, length = input_ids.shape
        context = self._context(_positions(batch, 0, length), attention_mask=attention_mask, bidirectional=True)
        return self._run(self.nlu, input_ids, context, None)[0]

    def _run(
        self, task: TaskModule, input_ids: Tensor, context: Context, memory: Memory | None
    ) -> tuple[Tensor, Memory]:
        """The layers of a pass, and what each of them hands to the next segment."""
        x, kept = self.model.embed_tokens(input_ids), []
        layers = [*self.model.layers, *task.layers]
        below = self.arch.recurrence == "layer-below"
        for index, layer in enumerate(layers):
            if index == len(self.model.layers) and task.in_proj is not None:
                x = task.in_proj(x)
            own = memory[index] if memory else None
            y = run_layer(layer, x, own, context)
            kept.append(self._remembered(own, x if below else y))
            x = y
        x = task.norm(x)
        return (x if task.out_proj is None else task.out_proj(x)), tuple(kept)

    def _remembered(self, memory: Tensor | None, states: Tensor) -> Tensor:
        """The last ``memory_length`` positions of memory and segment, cut off from the gradient."""
        joined = states if memory is None else paddle.concat([memory, states.detach()], axis=1)
        return joined[:, max(0, joined.shape[1] - self.arch.memory_length) :].detach()

    def _context(self, position_ids: Tensor, **masks: Any) -> Context:
        cached, theta = masks.get("cache") is not None, self.arch.rope_theta
        learning = self.training and not cached and paddle.is_grad_enabled()
        sizes = {self.arch.universal.head_dim, self.arch.task.head_dim}
        tables = {size: ops.rope_tables(position_ids, size, theta) for size in sizes}
        return Context(tables, recompute=self.recompute_granularity if learning else "none", **masks)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """float32 logits [B, S, V] of the module for generation."""
        features = self.features(
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            startend_row_indices=startend_row_indices,
            cache=cache,
        )
        return self.logits(features.hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [..., V] of hidden states [..., H] of either task module."""
        weight, transposed, bias = self.head()
        return ops.head_logits(hidden, weight, transposed=transposed, bias=bias)

    def head(self) -> tuple[Tensor, bool, None]:
        """The embedding [V, H], transposed; no bias. Both task modules share it."""
        return self.model.embed_tokens.weight, True, None

    def after_step(self, *, rate: float = 0.0) -> None:
        """Nothing to do after an optimizer step."""

    def set_recompute(self, granularity: str) -> None:
        """What the backward pass makes again instead of reading it from memory; see ``ernie45``."""
        if granularity not in GRANULARITIES:
            raise ValueError(f"recompute is one of {', '.join(GRANULARITIES)}, not {granularity!r}")
        self.recompute_granularity = granularity


def _positions(batch: int, start: int, count: int) -> Tensor:
    return paddle.arange(start, start + count, dtype="int64").unsqueeze(0).expand([batch, count])
