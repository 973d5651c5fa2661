"""Turns a built model into a pipeline stage. Its code and parameter names stay the same: layers of other stages are replaced by
empty ones, the embedding of later stages returns the received hidden states, the final norm of earlier stages sends its input,
and a missing head returns zeros. The model's layout names these modules.

The objective runs on every stage. Without the head its main loss is zero; router losses of local layers get their gradients
through it as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, PluginError, ops
from erniecore.api.layers import child, derived, replaced, sublayer
from erniecore.api.parallel import Features, ShardedVocabulary, Stages
from erniecore_hybrid_parallel.pipe import Pipe
from erniecore_hybrid_parallel.positions import SharedRows
from erniecore_hybrid_parallel.split import ranges


class PipelineModel:
    """A model of which this rank runs some virtual stages."""

    pipe: Pipe
    no_head: NoHead

    @property
    def reads_images(self) -> bool:
        """Whether images are put into the stream: on the first virtual stage, where it begins."""
        return self.pipe.virtual_stage == 0

    def features(self, input_ids: Tensor, **options: Any) -> Features:
        """Hidden states of the virtual stage that runs; outside of a pass, all local virtual stages in turn."""
        pipe = self.pipe
        if pipe.virtual_stage is not None:
            return self._pass(input_ids, options)
        for chunk in range(pipe.chunks):
            with pipe.running(pipe.virtual_stage_of(chunk)):
                found = self._pass(input_ids, options)
        return found

    def _pass(self, input_ids: Tensor, options: dict[str, Any]) -> Features:
        batch, length = input_ids.shape
        if isinstance(self, SharedRows) and options.get("cache") is None:  # while text is generated, rows are whole
            length = self.context_shard.here(length)
        self.pipe.enter(batch, length)
        found: Features = super().features(input_ids, **options)  # type: ignore[misc]
        return replace(found, auxiliary=self.pipe.leave(found.auxiliary))

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """The head, or :class:`NoHead` on other stages."""
        if not self.pipe.ends:
            weight = self.no_head.weight
            ops.sharded_parameters.bind(weight, self.no_head)
            return weight, True, None
        found: tuple[Tensor, bool, Tensor | None] = super().head()  # type: ignore[misc]
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits; zeros of shape [..., 1] without the head. From what :meth:`head` gives: a model's own code may ask its
        embedding, which is on another stage."""
        if not self.pipe.ends:
            return _zeros(hidden)
        weight, transposed, bias = self.head()
        sharded = ops.sharded_parameters.of(weight)
        compute = sharded.logits if isinstance(sharded, ShardedVocabulary) else ops.head_logits
        return compute(hidden, weight, transposed=transposed, bias=bias).astype("float32")


class StageEmbedding:
    """An embedding on this rank: embeds ids on the first virtual stage, else returns the received hidden states."""

    pipe: Pipe

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        stream = self.pipe.take()
        found: Tensor = super().forward(ids) if stream is None else stream  # type: ignore[misc]
        return found


class StageNorm:
    """A final norm on this rank: applied on the last virtual stage, else its input is sent to the next one."""

    pipe: Pipe

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, H] on the last virtual stage, else [B, S, 1]."""
        found: Tensor = super().forward(x) if self.pipe.ends else self.pipe.give(x)  # type: ignore[misc]
        return found


class StageLayer:
    """A layer on this rank; it is skipped while another virtual stage runs."""

    pipe: Pipe
    virtual_stage: int

    def forward(self, x: Tensor, *rest: Any, **options: Any) -> Any:
        """The layer's own output, or (x,) if it is skipped."""
        if self.pipe.virtual_stage != self.virtual_stage:
            return (x,)
        return super().forward(x, *rest, **options)  # type: ignore[misc]


class StageHead:
    """A head on this rank; returns zeros unless the last virtual stage runs."""

    pipe: Pipe

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., outputs], or [..., 1] zeros."""
        found: Tensor = super().forward(hidden) if self.pipe.ends else _zeros(hidden)  # type: ignore[misc]
        return found


class LastStageLayers:
    """A list of layers that run on the last virtual stage; empty while another one runs."""

    pipe: Pipe

    def __iter__(self) -> Any:
        return super().__iter__() if self.pipe.ends else iter(())  # type: ignore[misc]

    def __len__(self) -> int:
        return super().__len__() if self.pipe.ends else 0  # type: ignore[misc]


class ReceivedInput(nn.Layer):  # type: ignore[misc]
    """Replaces the embedding on later stages: returns the received hidden states."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.pipe.take()
        assert stream is not None, "the embedding is on another stage, and is called twice here"
        return stream


class SentOutput(nn.Layer):  # type: ignore[misc]
    """Replaces the final norm on earlier stages: its input is sent to the next virtual stage."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, x: Tensor) -> Tensor:
        return self.pipe.give(x)


class EmptyLayer(nn.Layer):  # type: ignore[misc]
    """Replaces a layer of another stage."""

    def forward(self, x: Tensor, *rest: Any, **options: Any) -> tuple[Tensor]:
        return (x,)


class NoHead(nn.Layer):  # type: ignore[misc]
    """In the place of a head: as many logits, and none of them computed.

    Args:
        size: logits.

    Attributes:
        shards: how many of this size the vocabulary has.
    """

    shards = 1

    def __init__(self, size: int, dtype: Any) -> None:
        super().__init__()
        self._weights = [paddle.zeros([size, 1], dtype)]  # in a list: no part of the model's state
        self.bias = None

    @property
    def weight(self) -> Tensor:
        """Zeros of shape [size, 1]."""
        return self._weights[0]

    def forward(self, hidden: Tensor) -> Tensor:
        return _zeros(hidden)

    def linear_cross_entropy(self, hidden: Tensor, weight: Tensor, labels: Tensor, **_: Any) -> Tensor:
        """As ``ops.linear_cross_entropy``: zeros [T]."""
        return paddle.zeros(hidden.shape[:1], "float32")

    def logits(self, hidden: Tensor, weight: Tensor, *, transposed: bool, bias: Tensor | None) -> Tensor:
        """As many zeros as the whole vocabulary has ids, [n, V]."""
        return paddle.zeros([*hidden.shape[:-1], self.weight.shape[0] * self.shards], "float32")


def _zeros(hidden: Tensor) -> Tensor:
    return paddle.zeros([*hidden.shape[:-1], 1], "float32")


def build_stage(model: Any, stages: Stages | None, pipe: Pipe, split: Sequence[int]) -> tuple[Any, list[str]]:
    """Build this rank's stage of ``model`` by replacing its layers.

    Returns:
        The stage, and the names of parameters that both the first and the last stage have: those of the embedding, if the
        head or further layers of the last stage use it.
    Raises:
        PluginError: the layout does not name the modules, or the model does not have them.
    """
    if stages is None:
        raise PluginError("the model's layout does not say where a pipeline may cut", fix="set Layout.stages")
    embedding, layers = _find(model, stages.embedding), _find(model, stages.layers)
    weight, transposed, _ = model.head()
    tied = any(parameter is weight for parameter in embedding.parameters())
    further = [_find(model, name) for name in stages.further]
    shared = tied or any(len(block) for block in further)
    pipe.width, pipe.dtype = int(embedding.weight.shape[-1]), embedding.weight.dtype
    pipe.auxiliary = stages.auxiliary
    pipe.layers_here = tuple(
        i for stage, indices in enumerate(ranges(split)) for i in indices if stage % pipe.stages == pipe.stage
    )
    if len(layers) != sum(split):
        raise PluginError("the model has another number of layers than its plan", found=str(len(layers)))
    first, last = pipe.stage == 0, pipe.stage == pipe.stages - 1
    no_head = NoHead(int(weight.shape[0 if transposed else 1]), weight.dtype)
    _place_layers(layers, pipe, split)
    _replace(model, stages.embedding, first or (last and shared), StageEmbedding, lambda: ReceivedInput(pipe), pipe)
    _replace(model, stages.norm, last, StageNorm, lambda: SentOutput(pipe), pipe)
    for name in stages.head:
        if child(model, name) is not None:
            _replace(model, name, last, StageHead, lambda: no_head, pipe)
    for name in stages.seeing if not first else ():
        replaced(model, name, EmptyLayer())
    for name in stages.further:
        _replace(model, name, last, LastStageLayers, nn.LayerList, pipe)
    model.no_head = no_head
    if all(parameter.stop_gradient for parameter in model.parameters()):
        raise ConfigError.at("parallel.split", f"stage {pipe.stage} would have nothing to train")
    both = [f"{stages.embedding}.{name}" for name, _ in embedding.named_parameters()] if shared else []
    return derived(model, PipelineModel, pipe=pipe), both


def _place_layers(layers: Any, pipe: Pipe, split: Sequence[int]) -> None:
    for virtual_stage, indices in enumerate(ranges(split)):
        for index in indices:
            if virtual_stage % pipe.stages != pipe.stage:
                layers[index] = EmptyLayer()
                continue
            layers[index] = derived(layers[index], StageLayer, pipe=pipe, virtual_stage=virtual_stage)


def _replace(model: Any, name: str, here: bool, behavior: type, replacement: Any, pipe: Pipe) -> None:
    """Wrap a sublayer that is on this stage, or replace one that is not."""
    replaced(model, name, derived(_find(model, name), behavior, pipe=pipe) if here else replacement())


def _find(model: Any, name: str) -> Any:
    """The sublayer of that name; the model itself for an empty name."""
    try:
        return sublayer(model, name)
    except KeyError as error:
        raise PluginError("the model's layout names a layer that the model does not have", where=name) from error
