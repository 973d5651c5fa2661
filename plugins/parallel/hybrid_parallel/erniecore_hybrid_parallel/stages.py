"""A stage of a pipeline out of a built model, whose code stays as it is and whose parameters keep their names: layers of
other stages become empty ones, the embedding of later stages becomes what comes in, the norm of earlier ones what goes
out, and where there is no head, one stands in that gives zeros. Where these parts are in a model, its layout says.

An objective runs on every stage alike. Without the head its main loss is nothing; router losses of the layers that are here
reach their gradient through it as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, PluginError, ops
from erniecore.api.layers import child, derived, replaced, sublayer
from erniecore.api.parallel import Features, Stages
from erniecore_hybrid_parallel.pipe import Pipe
from erniecore_hybrid_parallel.split import ranges


class StagedModel:
    """A model of which this rank runs some parts."""

    pipe: Pipe
    no_head: NoHead

    def features(self, input_ids: Tensor, **options: Any) -> Features:
        """Of the part that runs; between passes, of all parts that are here, one after the other."""
        if options.get("cache") is not None:
            raise ConfigError.at("parallel.pipeline", "a pipeline cannot generate text")
        pipe = self.pipe
        if pipe.part is not None:
            return self._pass(input_ids, options)
        for chunk in range(pipe.chunks):
            with pipe.running(pipe.part_of(chunk)):
                found = self._pass(input_ids, options)
        return found

    def _pass(self, input_ids: Tensor, options: dict[str, Any]) -> Features:
        self.pipe.enter(*input_ids.shape)
        found: Features = super().features(input_ids, **options)  # type: ignore[misc]
        return replace(found, auxiliary=self.pipe.leave(found.auxiliary))

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """The head, or what stands in for it."""
        if not self.pipe.ends:
            weight = self.no_head.weight
            ops.sharded_parameters.bind(weight, self.no_head)
            return weight, True, None
        found: tuple[Tensor, bool, Tensor | None] = super().head()  # type: ignore[misc]
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """float32; without the head [..., 1] zeros."""
        found: Tensor = super().logits(hidden) if self.pipe.ends else _zeros(hidden)  # type: ignore[misc]
        return found


class FirstOrNext:
    """An embedding that is here: it embeds, unless a stream has come in."""

    pipe: Pipe

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, S] -> [B, S, H]."""
        stream = self.pipe.take()
        found: Tensor = super().forward(ids) if stream is None else stream  # type: ignore[misc]
        return found


class LastOrOut:
    """A norm that is here: it is applied on the last part, elsewhere its input goes out."""

    pipe: Pipe

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] -> the same, or [B, S, 1]."""
        found: Tensor = super().forward(x) if self.pipe.ends else self.pipe.give(x)  # type: ignore[misc]
        return found


class SomePart:
    """A layer that is here; it does nothing while another part runs."""

    pipe: Pipe
    pipe_part: int

    def forward(self, x: Tensor, *rest: Any, **options: Any) -> Any:
        """As the layer; (x,) where it does nothing."""
        if self.pipe.part != self.pipe_part:
            return (x,)
        return super().forward(x, *rest, **options)  # type: ignore[misc]


class LastHead:
    """A head that is here; zeros while another part than the last one runs."""

    pipe: Pipe

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., outputs], or [..., 1] zeros."""
        found: Tensor = super().forward(hidden) if self.pipe.ends else _zeros(hidden)  # type: ignore[misc]
        return found


class FurtherLayers:
    """A list of layers that run on the last part; it looks empty while another one runs."""

    pipe: Pipe

    def __iter__(self) -> Any:
        return super().__iter__() if self.pipe.ends else iter(())  # type: ignore[misc]

    def __len__(self) -> int:
        return super().__len__() if self.pipe.ends else 0  # type: ignore[misc]


class Incoming(nn.Layer):  # type: ignore[misc]
    """In the place of the embedding: the stream that came in."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, ids: Tensor) -> Tensor:
        stream = self.pipe.take()
        assert stream is not None, "the embedding is on another stage, and is called twice here"
        return stream


class Outgoing(nn.Layer):  # type: ignore[misc]
    """In the place of the final norm: what comes in goes to the next part."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, x: Tensor) -> Tensor:
        return self.pipe.give(x)


class Elsewhere(nn.Layer):  # type: ignore[misc]
    """In the place of a layer of another stage: nothing."""

    def forward(self, x: Tensor, *rest: Any, **options: Any) -> tuple[Tensor]:
        return (x,)


class NoHead(nn.Layer):  # type: ignore[misc]
    """In the place of a head: as many logits, and none of them computed.

    Args:
        size: logits.
    """

    def __init__(self, size: int, dtype: Any) -> None:
        super().__init__()
        self._weights = [paddle.zeros([size, 1], dtype)]  # in a list: no part of the model's state

    @property
    def weight(self) -> Tensor:
        """[size, 1] zeros."""
        return self._weights[0]

    def forward(self, hidden: Tensor) -> Tensor:
        return _zeros(hidden)

    def linear_cross_entropy(self, hidden: Tensor, weight: Tensor, labels: Tensor, **_: Any) -> Tensor:
        """What ``ops.linear_cross_entropy`` gives with this head: zeros [T]."""
        return paddle.zeros(hidden.shape[:1], "float32")


def _zeros(hidden: Tensor) -> Tensor:
    return paddle.zeros([*hidden.shape[:-1], 1], "float32")


def lay_out(model: Any, stages: Stages | None, pipe: Pipe, split: Sequence[int]) -> tuple[Any, list[str]]:
    """What this stage has of ``model``, whose layers are replaced.

    Returns:
        It, and names of parameters that the first and the last stage both have: of the embedding, where the head or further
        layers of the last stage use it.
    Raises:
        PluginError: the layout does not say where the parts are, or they are not there.
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
    if len(layers) != sum(split):
        raise PluginError("the model has another number of layers than its plan", found=str(len(layers)))
    first, last = pipe.stage == 0, pipe.stage == pipe.stages - 1
    no_head = NoHead(int(weight.shape[0 if transposed else 1]), weight.dtype)
    _lay_layers(layers, pipe, split)
    _replace(model, stages.embedding, first or (last and shared), FirstOrNext, lambda: Incoming(pipe), pipe)
    _replace(model, stages.norm, last, LastOrOut, lambda: Outgoing(pipe), pipe)
    for name in stages.head:
        if child(model, name) is not None:
            _replace(model, name, last, LastHead, lambda: no_head, pipe)
    for name in stages.further:
        _replace(model, name, last, FurtherLayers, nn.LayerList, pipe)
    model.no_head = no_head
    if all(parameter.stop_gradient for parameter in model.parameters()):
        raise ConfigError.at("parallel.split", f"stage {pipe.stage} would have nothing to train")
    both = [f"{stages.embedding}.{name}" for name, _ in embedding.named_parameters()] if shared else []
    return derived(model, StagedModel, pipe=pipe), both


def _lay_layers(layers: Any, pipe: Pipe, split: Sequence[int]) -> None:
    for part, indices in enumerate(ranges(split)):
        for index in indices:
            if part % pipe.stages != pipe.stage:
                layers[index] = Elsewhere()
                continue
            layers[index] = derived(layers[index], SomePart, pipe=pipe, pipe_part=part)


def _replace(model: Any, name: str, here: bool, behavior: type, stand_in: Any, pipe: Pipe) -> None:
    """Give a sublayer that is here its behavior, and put something else in the place of one that is not."""
    replaced(model, name, derived(_find(model, name), behavior, pipe=pipe) if here else stand_in())


def _find(model: Any, name: str) -> Any:
    """The sublayer of that name; the model itself for an empty one."""
    try:
        return sublayer(model, name)
    except KeyError as error:
        raise PluginError("the model's layout names a part that is not there", where=name) from error
