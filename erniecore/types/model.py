"""Models, their weights in public checkpoints, and their parallel layout. Letters: B batch, S sequence, H hidden,
V vocabulary, K cached and new positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from erniecore.types.records import Json
from erniecore.types.text import Tokenizer

if TYPE_CHECKING:
    import paddle

    from erniecore.types.samples import Array

    Tensor: TypeAlias = paddle.Tensor
    Layer: TypeAlias = paddle.nn.Layer


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How one of our tensors is stored in a public checkpoint.

    Attributes:
        name: structured name in our model; ``shape`` its shape there.
        sources: public names, in the order that ``load`` takes and ``store`` returns them.
        source_shapes: their shapes; in a map for reading, -1 stands for any size, which ``load`` checks.
        load: public arrays -> our array. It moves values and computes nothing: bfloat16 comes as bits. Best a view, such as
            ``arrays[0].T``. ``store``: the reverse (``None``: this layout is only read).
        dtype: ``"float32"`` where the tensor must stay so whatever the model's dtype; ``""`` otherwise.
        trained: ``False`` for a tensor that is saved but never trained, e.g. router statistics; for the plan.
        active_share: the fraction of it that is active for one text token, in [0, 1]: k / E for E stacked experts of
            which a token is routed to k, 0 for what only images pass; for the plan.
        stacked: each source is a matrix of ours, in order, and ``load`` also takes some of them: these are read one by one.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    source_shapes: tuple[tuple[int, ...], ...]
    load: Callable[[Sequence[Array]], Array]
    store: Callable[[Array], Sequence[Array]] | None
    dtype: str = ""
    trained: bool = True
    active_share: float = 1.0
    stacked: bool = False


class StateAdapter(Protocol):
    """Public checkpoint names <-> ours, for the layouts ``"pt"`` (read and written) and ``"paddle"`` (read)."""

    def layout_of(self, names: Sequence[str]) -> str:
        """Which layout a checkpoint with these tensor names has; decided once for all its files.

        Raises ``CheckpointError`` when it is none of them."""
        ...

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """One map per tensor of our model.

        Args:
            layout: ``"pt"`` or ``"paddle"``.
            names: what the checkpoint holds, when one is read; empty when one is written.

        Raises ``CheckpointError`` when ``names`` contradict the architecture."""
        ...

    def ignored(self, name: str) -> bool:
        """A public tensor that this model leaves alone (e.g. MTP weights when MTP is off)."""
        ...


@dataclass(frozen=True, slots=True)
class Stages:
    """Where the parts of a model are that a pipeline lays on different ranks: names of its sublayers, and what a stage may
    rely on. Between two stages travels what ``layers`` hand to each other, [B, S, H] in the dtype of the weights.

    Attributes:
        embedding: called with ids [B, S] first thing in ``features``, and again where ``further`` blocks need it.
        layers: a list of layers; each is called with the hidden states as its first argument and returns (hidden states,
            *more); the model accepts layers that return nothing more.
        norm: called with the hidden states after the last layer, and again where ``further`` blocks need it.
        head: sublayers that only turn hidden states into results; names that a model does not have are no mistake.
        further: lists of layers that run after ``layers`` and give nothing when they are empty (multi-token prediction).
        auxiliary: names that ``Features.auxiliary`` may have.
        seeing: sublayers that put images into the stream behind the embedding: they are on the first stage. The model asks
            itself for ``reads_images``, which is false in the passes of later stages.
    """

    embedding: str
    layers: str
    norm: str
    head: tuple[str, ...] = ("lm_head", "score")
    further: tuple[str, ...] = ()
    auxiliary: tuple[str, ...] = ()
    seeing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Which parallel style each parameter takes, as data.

    ``rules``: (pattern over structured names, style); the first match counts. Styles: ``column`` and ``row``
    (of a [in, out] weight), ``vocab`` (embedding or head over V), ``expert`` (first axis is experts),
    ``replicate``. For what an adapter adds, inside of layers that know: ``first`` or ``last`` (cut along that axis) and
    ``partial`` (whole on every rank, its gradient a sum over ranks).

    ``matrices``: patterns of 2-D weights of hidden layers that are not ``column`` or ``row``; to an optimizer they are
    matrices as those are, and not routers or norms.
    """

    rules: tuple[tuple[str, str], ...]
    stages: Stages | None = None
    matrices: tuple[str, ...] = ()

    def style(self, name: str) -> str | None:
        """The style of parameter ``name``; None where no rule matches."""
        return next((style for pattern, style in self.rules if fnmatchcase(name, pattern)), None)


@dataclass(frozen=True, slots=True)
class Features:
    """What a language model computes before its head.

    Attributes:
        hidden: [B, S, H] after the final norm, ready for the head.
        mtp_hidden: hidden states of the multi-token-prediction depths, each [B, S, H] after the final norm; depth n
            (0-based) at position t predicts token t + n + 2, i.e. ``labels`` shifted left by n + 1.
        auxiliary: scalars that are added to the loss for their gradient only (router losses with their
            coefficients); the reported loss excludes them.
        residual: [B, S, H], the residual stream before the final norm, where there is a cache and the model is a
            :class:`MultiTokenPredictor`.
    """

    hidden: Tensor
    mtp_hidden: tuple[Tensor, ...] = ()
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)
    residual: Tensor | None = None


class CausalLM(Protocol):
    """What the engine and the methods need of a model. Models are ``paddle.nn.Layer`` with these members.

    ``startend_row_indices`` int32 [B, 1, S, 1] isolates packed samples; ``attention_mask`` int64 [B, K] is a key
    mask (1 = real token) over cached and new keys. Both are optional; attention is always causal.
    """

    #: the architecture, as in config.json, unknown keys kept
    architecture: Json

    def features(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        startend_row_indices: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Features:
        """Everything below the head."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 logits [..., V] of ``Features.hidden`` (any leading shape)."""
        ...

    def head(self) -> tuple[Tensor, bool, Tensor | None]:
        """(weight, transposed, bias): logits = hidden @ weight (+ bias), or hidden @ weight.T if transposed.

        Lets a loss compute logits in chunks, or only at positions with a label."""
        ...

    def after_step(self, *, rate: float = 0.0) -> None:
        """Called once after each optimizer step, with the learning rate that it had: for updates that no gradient makes,
        such as the aux-free router bias, or that must bypass the optimizer state. Usually does nothing."""
        ...


class StoredWeight(NamedTuple):
    """How a packed parameter is stored, for exporters. A ``PackedLayer`` may return it from a method ``stored(parameter)``.

    Attributes:
        quant_dtype: ``int8``, ``int4``, ``nf4``, ``e4m3``, ``e4m3 by blocks``, or a name of the quantizer's own.
        qweight, scales: the layer's tensors. group: inputs that share a scale; 0: all of an output, or of the tensor.
        input_scale: float32 [1], of the inputs in FP8; or factors per input.
        hadamard_block: block of the Hadamard transform of the inputs; 1: none.
    """

    quant_dtype: str
    qweight: Tensor
    scales: Tensor
    group: int = 0
    input_scale: Tensor | None = None
    hadamard_block: int = 1


@runtime_checkable
class MultiTokenPredictor(Protocol):
    """A ``CausalLM`` with a multi-token-prediction (MTP) layer that can draft the token after the next one while it decodes.
    ``num_nextn_predict_layers`` of its architecture is above 0."""

    def mtp_forward(
        self,
        residual: Tensor,
        next_ids: Tensor,
        *,
        position_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Hidden states [B, S, H], ready for :meth:`CausalLM.logits`: position t predicts token t + 2.

        Args:
            residual: [B, S, H], ``Features.residual``. next_ids: int64 [B, S], the token after each position.
            position_ids, attention_mask: those of the pass that computed ``residual``.
            cache: the same cache; the MTP layer's index in it is the one after the model's own layers.
        """
        ...


@runtime_checkable
class PackedLayer(Protocol):
    """A layer with quantized weights that replaces a linear layer or stacked experts. Adapters call it instead of reading the
    parameters ``weight``, ``gate_proj``, ``up_proj``, ``down_proj``.

    Letters: N rows, I inputs, O outputs; ``..`` is the experts of a stack, or nothing.

    Attributes:
        compute_dtype: Paddle dtype in which matmuls are computed.
    """

    compute_dtype: Any

    def packed_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Parameter -> its shape [.., I, O]; a parameter that is not here is an ordinary one."""
        ...

    def dequantized(self, parameter: str) -> Tensor:
        """The dequantized weight [.., I, O]: a new tensor in ``compute_dtype``, without a gradient."""
        ...

    def matmul(self, parameter: str, x: Tensor, routes: Any = None) -> Tensor:
        """x [.., I] -> [.., O] without the bias; for a stack, rows [N, I] with the ``routes`` of ``ops.dispatch``. The
        gradient reaches x; nothing as large as the weight is saved for it."""
        ...


class RankGroup(Protocol):
    """Ranks that share a weight, this one among them.

    Attributes:
        size, index: how many, and this rank's place among them.
    """

    size: int
    index: int

    def all_max(self, tensor: Tensor) -> Tensor:
        """Elementwise maximum over the group, in place."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum over the group, in place."""
        ...


@runtime_checkable
class ShardableWeights(Protocol):
    """A layer whose weights are quantized, or rounded with a scale of the full weight. A parallel strategy that shards such a
    weight calls :meth:`shard_weight`. A wrapper layer passes the call on."""

    def packed_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`PackedLayer`; empty where all weights are parameters."""
        ...

    def shard_weight(self, parameter: str, axis: int, group: RankGroup) -> Mapping[str, int]:
        """Announce that ``parameter`` is sharded evenly along ``axis`` among the ranks of ``group``; returns the names of this
        layer's other tensors that the caller has to shard with it, and along which axes. Parameters are sharded anyway.

        Raises:
            ValueError: shards would not have the values of the full weight; the message says why.
        """
        ...


class Cache(Protocol):
    """Keys and values of past positions, one pair per layer; built by the generator."""

    #: how many positions are stored
    length: int

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append [B, S, heads, d] and return all keys and values so far, [B, K, heads, d]."""
        ...


class CacheCodec(Protocol):
    """KV-cache quantization; a quantizer adds it to the model as ``cache_codec``. The stored values of a position depend on that
    position alone.

    Attributes:
        quant_dtype: ``int8``, ``int4``, ``fp8``, or a name of the quantizer's own. static: scales were fixed by calibration.
    """

    quant_dtype: str
    static: bool

    def encode(self, layer: int, part: str, x: Tensor) -> tuple[Tensor, ...]:
        """``part`` (``keys``, ``values``) [B, S, heads, d] of a layer as what is stored, each [B, S, ...]."""
        ...

    def decode(self, layer: int, part: str, stored: tuple[Tensor, ...], like: Tensor) -> Tensor:
        """The dequantized keys or values [B, K, heads, d] in the dtype of ``like``."""
        ...

    def largest(self, layer: int, part: str) -> Tensor:
        """float32 [heads, d]: the largest value that can be represented, where ``static``."""
        ...


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A model with everything that a model directory holds.

    Attributes:
        model: a ``CausalLM``.
        architecture: the content of config.json, unknown keys kept.
        adapter: the names and shapes of the model's weights in public checkpoints.
        tokenizer: with its chat template; ``None`` where there is none.
        generation: the content of generation_config.json.
        provenance: where the model comes from, for its README and manifest.
    """

    model: Layer
    architecture: Json
    adapter: StateAdapter
    tokenizer: Tokenizer | None
    generation: Json = field(default_factory=dict)
    provenance: Json = field(default_factory=dict)
