"""Tensor parallelism: matrices of a built model are cut in place by the model's layout, and their layers learn to sum or
join over the ranks that share them. Model code stays as it is: it reads widths from the weights.

Shoeybi et al., "Megatron-LM" (2019), arXiv:1909.08053. Between two cut matrices every rank has all activations, so
whatever is not cut is computed alike everywhere and its gradient is whole on every rank.

Letters: B batch, S positions, T tokens, H hidden, V vocabulary, E experts, k experts per token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

import paddle  # noqa: TID253
from paddle import Tensor, nn  # noqa: TID253

from erniecore.api import ConfigError, PluginError, ops
from erniecore.api.experts import ExpertLayer
from erniecore.api.layers import derived, keep_part, replaced
from erniecore.api.parallel import Layout, PackedLayer, ShardableWeights
from erniecore_hybrid_parallel.comm import Comm
from erniecore_hybrid_parallel.quantized import packed_names, tensors_of
from erniecore_hybrid_parallel.regions import collect, enter, join, leave, scatter
from erniecore_hybrid_parallel.vocabulary import VocabShard

#: counts of config.json that the ranks must be able to divide among them
_HEADS = ("num_attention_heads", "num_key_value_heads")


class Shard:
    """The tensor-parallel group; the same object in every copy of the model.

    Attributes:
        sequence: sequence parallelism: between sharded matrices each rank has some of the positions, so the gradients of
            parameters there are sums over the ranks.
    """

    def __init__(self, comm: Comm, *, sequence: bool = False) -> None:
        self.comm, self.sequence = comm, sequence
        self._last: tuple[Any, Any] = (None, None)

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        return self

    def enter(self, x: Tensor) -> Tensor:
        """``x`` for column-parallel matrices; layers with the same input share one collective, and their gradients are summed.

        The result is cached until :meth:`leave`, because operators that recompute their inputs do not keep it alive."""
        last, entered = self._last
        if last is None or last() is not x or not paddle.is_grad_enabled():
            entered = collect(x, self.comm, _positions(x)) if self.sequence else enter(x, self.comm)
            self._last = (ref(x), entered) if paddle.is_grad_enabled() else (None, None)
        return entered

    def gathered(self, x: Tensor) -> Tensor:
        """``x``, which has no gradient, as :meth:`enter` gives it."""
        return self.comm.all_gather(x, _positions(x)) if self.sequence else x

    def leave(self, x: Tensor) -> Tensor:
        """The sum over ranks; with sequence parallelism, this rank's positions of it."""
        self._last = None, None
        return scatter(x, self.comm, _positions(x)) if self.sequence else leave(x, self.comm)


def _positions(x: Tensor) -> int:
    """The axis of positions: of [B, S, n] the second, of tokens [T, n] the first."""
    return 1 if x.ndim == 3 else 0


class Column:
    """A column-parallel linear layer: this rank has some of the outputs."""

    tensor_shard: Shard

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(self.tensor_shard.enter(x))  # type: ignore[misc]
        return found


class Row:
    """A linear layer that has some of its inputs; the bias is added once, to the sum."""

    tensor_shard: Shard
    has_bias: bool
    weight: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs here] -> [..., outputs]."""
        bias = self.bias if self.has_bias else None  # type: ignore[attr-defined]  # a name here would hide the parameter
        if isinstance(self, nn.Linear):
            y = ops.linear(x, self.weight)
        else:  # a linear layer with an update beside its weight
            y = super().forward(x)  # type: ignore[misc]
            y = y if bias is None else y - bias
        y = self.tensor_shard.leave(y)
        return y if bias is None else y + bias


class VocabEmbedding:
    """An embedding layer that has some of the rows."""

    tensor_shard: Shard
    num_rows: int

    def forward(self, ids: Tensor) -> Tensor:
        """ids [...] -> [..., H]; ids of other ranks' rows give 0 here."""
        comm, size = self.tensor_shard.comm, self.num_rows
        local = ids - comm.index * size
        mine = paddle.logical_and(local >= 0, local < size)
        rows = super().forward(local.clip(0, size - 1))  # type: ignore[misc]
        return self.tensor_shard.leave(rows * mine.unsqueeze(-1).astype(rows.dtype))


class SharedHead:
    """A model whose head has some of the vocabulary."""

    tensor_shard: Shard

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """The head's part here; it carries how a loss over the whole vocabulary is computed with it."""
        weight, transposed, bias = super().head()  # type: ignore[misc]
        ops.sharded_parameters.bind(weight, VocabShard(self.tensor_shard.comm))
        return weight, transposed, bias

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [..., V], the same on every rank."""
        comm = self.tensor_shard.comm
        return join(super().logits(enter(hidden, comm)), comm)  # type: ignore[misc]


#: style -> what the layer that owns such a parameter becomes; heads and biases stay as they are
_BECOMES = {"column": Column, "row": Row, "vocab": VocabEmbedding}


class Cut(NamedTuple):
    """A weight that is cut: its style, the axis, the layer that owns it, and its shape; ``parameter`` is None of codes."""

    name: str
    parameter: Tensor | None
    style: str
    axis: int
    layer: nn.Layer
    shape: Sequence[int]


class ShardedModel(NamedTuple):
    """A cut model: name -> axis of what was cut, and names of parameters with a part of their gradient here."""

    model: Any
    axes: dict[str, int]
    partial: list[str]


def shard_model(model: Any, layout: Layout, shard: Shard, done: Collection[str] = ()) -> ShardedModel:
    """``model`` with its matrices cut; the tensors are cut in place.

    Args:
        done: names of what is cut already: experts.
    Raises:
        ConfigError: a width that the ranks cannot divide evenly.
        PluginError: a parameter without a style, or of a style that its layer cannot take.
    """
    comm = shard.comm
    check_heads(model.architecture, comm.size)
    found = [*find_cuts(model, layout, done), *find_codes(model, layout)]
    cuts = [cut for cut in found if cut.style != "partial"]
    for cut in cuts:
        width = cut.shape[cut.axis]
        if width % comm.size:
            raise ConfigError.at("parallel.tensor", f"{comm.size} ranks cannot share {cut.name}: its width is {width}")
    changed, axes = set[int](), dict[str, int]()
    head_weight, tied, _ = model.head()
    for cut in cuts:
        owned = tensors_of(cut.layer, cut.name, cut.axis, comm, "parallel.tensor")
        if cut.parameter is not None:
            owned[cut.name] = cut.parameter, cut.axis
        for name, (tensor, axis) in owned.items():
            keep_shard(tensor, axis, comm)
            axes[name] = axis
        only_head = cut.parameter is head_weight and not tied  # a tied one is also the embedding, called with ids
        if id(cut.layer) not in changed and not only_head:
            changed.add(id(cut.layer))
            become(model, cut, shard)
    if any(cut.style == "vocab" for cut in cuts):
        model = derived(model, SharedHead, tensor_shard=shard)
    partial = [cut.name for cut in found if cut.style == "partial"]
    if shard.sequence:
        partial += inside(model, layout, {*done, *(cut.name for cut in found)})
    return ShardedModel(model, axes, partial)


def inside(model: Any, layout: Layout, cut: Collection[str]) -> list[str]:
    """Names of uncut parameters that see some of the positions: all but those of heads, which see whole rows."""
    heads = layout.stages.head if layout.stages is not None else ()
    return [n for n, _ in model.named_parameters() if n not in cut and not n.startswith(tuple(f"{h}." for h in heads))]


def check_heads(architecture: Mapping[str, Any], size: int) -> None:
    """Raises ``ConfigError`` if attention heads cannot be divided among ``size`` ranks."""
    for key in _HEADS:
        if int(architecture.get(key) or size) % size:
            raise ConfigError.at("parallel.tensor", f"{size} ranks cannot share {architecture[key]} heads ({key})")


def check_packed(model: Any, key: str) -> None:
    """Raises ``ConfigError`` if the model has quantized weights whose layer does not say how they are cut: of experts alone for
    ``parallel.expert``, which cuts nothing else."""
    kind: Any = ExpertLayer if key == "parallel.expert" else object
    for name, layer in model.named_sublayers():
        if isinstance(layer, PackedLayer) and isinstance(layer, kind) and not isinstance(layer, ShardableWeights):
            raise ConfigError.at(key, f"these quantized weights cannot be shared among ranks ({name}); set it to 1")


def check_head(model: Any, key: str) -> None:
    """Raises ``ConfigError`` if the head is quantized: it is no parameter that two stages could share."""
    weight = model.head()[0]
    if all(weight is not parameter for parameter in model.parameters()):
        raise ConfigError.at(key, "stages cannot share a quantized head; set it to 1, or quantizer.head to none")


def find_cuts(model: Any, layout: Layout, done: Collection[str]) -> Iterator[Cut]:
    """Every parameter that the layout cuts, without those that are ``done``."""
    layers = dict(model.named_sublayers(include_self=True))
    head_weight, transposed, _ = model.head()
    for name, parameter in model.named_parameters():
        if name in done:
            continue
        style = layout.style(name)
        if style is None:
            raise PluginError("the model's layout has no style for this parameter", where=name)
        if style == "replicate":
            continue
        last = parameter.ndim - 1
        axes = {"column": last, "row": 0, "vocab": 0, "first": 0, "last": last, "partial": -1}
        if style not in axes:
            raise PluginError("the model's layout has an unknown style", where=name, found=style)
        axis = last if parameter is head_weight and not transposed else axes[style]
        yield Cut(name, parameter, style, axis, layers[name.rpartition(".")[0]], parameter.shape)


def find_codes(model: Any, layout: Layout) -> Iterator[Cut]:
    """Every weight of codes that the layout cuts, but experts."""
    for name, layer, shape in packed_names(model):
        style = str(layout.style(name))
        if style not in ("column", "row", "expert", "replicate"):
            raise PluginError("codes cannot take this style of the layout", where=name, found=style)
        if style in ("column", "row"):
            yield Cut(name, None, style, 1 if style == "column" else 0, layer, shape)


def keep_shard(parameter: Tensor, axis: int, comm: Comm) -> None:
    """Replace the storage of ``parameter`` by this rank's shard, in place."""
    size = parameter.shape[axis] // comm.size
    keep_part(parameter, [*[slice(None)] * axis, slice(comm.index * size, (comm.index + 1) * size)])


def become(model: Any, cut: Cut, shard: Shard) -> None:
    """Make the layer that owns a cut parameter sum or join over the ranks."""
    if cut.style not in _BECOMES or (cut.style == "vocab" and len(cut.shape) != 2):  # of an update, of a head
        return
    more: dict[str, Any] = {"tensor_shard": shard}
    if cut.style == "vocab":
        more["num_rows"] = cut.shape[0] // shard.comm.size
    if cut.style == "row":
        more["has_bias"] = any(name == "bias" for name, _ in cut.layer.named_parameters(include_sublayers=False))
    replaced(model, cut.name.rpartition(".")[0], derived(cut.layer, _BECOMES[cut.style], **more))
