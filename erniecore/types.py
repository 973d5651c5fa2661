"""The plain objects that the core and the plugins hand to each other.

Data classes and protocols only: no paddle and no numpy at import, no behaviour beyond what a name needs.
Shape letters: B batch, S sequence, H hidden, V vocabulary, n tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import paddle
    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.int64]
    Array: TypeAlias = NDArray[Any]
    Tensor: TypeAlias = paddle.Tensor
    Layer: TypeAlias = paddle.nn.Layer

Role = Literal["system", "user", "assistant", "tool"]
Json: TypeAlias = "Mapping[str, Any]"

#: Label of a position that is not learned.
IGNORE = -100


# --------------------------------------------------------------------------------------------- records
class Origin(NamedTuple):
    """Where a record came from: file as given by the user, 1-based line (or row of a JSON array)."""

    file: str
    line: int


#: Origin of records that no file holds.
NOWHERE = Origin("", 0)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call by the assistant; ``arguments`` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``learn`` matters for assistant messages only; ``reasoning`` is the thinking part."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    learn: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, the last one of the assistant, with the tools that were offered."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...] = ()
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Preference:
    """A prompt with a preferred and a rejected continuation (each may span several messages)."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    margin: float | None = None
    tools: tuple[Json, ...] = ()
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Rated:
    """A conversation judged desirable or not (unpaired preference)."""

    messages: tuple[Message, ...]
    desirable: bool
    tools: tuple[Json, ...] = ()
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Document:
    """Plain text for pre-training."""

    text: str
    origin: Origin = NOWHERE


Record: TypeAlias = "Conversation | Preference | Rated | Document"


# --------------------------------------------------------------------------------------------- samples
@dataclass(frozen=True, slots=True)
class Sample:
    """One training example as token arrays, not yet packed or padded.

    Attributes:
        input_ids: int64 [n].
        labels: int64 [n], already shifted: ``labels[t]`` is what position t must predict; IGNORE elsewhere.
        position_ids: int64 [n].
        end_rows: int32 [n]; for each key column the first query row (relative to this sample) that can no
            longer see it. A plain causal sample has ``end_rows == n`` everywhere.
        fields: further per-token arrays [n], concatenated when samples are packed.
        truncated: why the sample was shortened, or ``""``.
    """

    input_ids: IntArray
    labels: IntArray
    position_ids: IntArray
    end_rows: NDArray[np.int32]
    fields: Mapping[str, Array] = field(default_factory=dict)
    truncated: str = ""
    origin: Origin = NOWHERE

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of numpy arrays.

    Attributes:
        input_ids, labels, position_ids: int64 [B, S].
        startend_row_indices: int32 [B, 1, S, 1]; ``Sample.end_rows`` in coordinates of the row. Padding columns
            end at their own index, so nobody sees them.
        fields: the samples' further per-token arrays, [B, S].
        num_tokens: positions that are not padding; ``num_samples`` samples in it.
        origins: where its samples came from.
    """

    input_ids: IntArray
    labels: IntArray
    position_ids: IntArray
    startend_row_indices: NDArray[np.int32]
    fields: Mapping[str, Array]
    num_tokens: int
    num_samples: int
    origins: tuple[Origin, ...] = ()


class Encoder(Protocol):
    """Turns a record into samples; built by a method plugin. Pure, picklable, no paddle."""

    #: record classes that this method understands, e.g. ``(Conversation,)``
    accepts: tuple[type, ...]

    def encode(self, record: Record) -> Sequence[Sample]:
        """The samples of one record; raises ``RowError`` when nothing of it can be learned."""
        ...


# --------------------------------------------------------------------------------------------- tokenizer
@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a rendered prompt.

    ``text`` with ``trusted`` true comes from the template, and control tokens in it become their ids;
    untrusted text comes from users and is always encoded as plain text. ``message`` is the index of the
    message that the segment belongs to (-1: none). ``generated`` marks what the model itself would write:
    an assistant message after its generation prompt, up to and including its end token.
    """

    text: str
    trusted: bool
    message: int = -1
    generated: bool = False


class ChatTemplate(Protocol):
    """Renders messages; the only renderer for training, chat and export."""

    #: the jinja source, exported as ``chat_template.jinja``
    source: str
    #: token that ends an assistant turn inside a conversation (input side)
    turn_end: str
    #: token that the model learns to stop with (label side)
    stop: str

    def render(
        self, messages: Sequence[Message], tools: Sequence[Json] = (), *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt as one string."""
        ...

    def segments(
        self, messages: Sequence[Message], tools: Sequence[Json] = (), *, add_generation_prompt: bool = False
    ) -> list[Segment]:
        """The same text in pieces; ``"".join(s.text for s in segments)`` equals ``render``."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    #: control tokens by their text
    special_tokens: Mapping[str, int]
    chat_template: ChatTemplate | None

    def encode(self, text: str) -> list[int]:
        """Plain text; never yields a control token, whatever the text says."""
        ...

    def encode_segments(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Ids per segment. Adjacent segments form one run unless ``generated`` changes between them, so the
        ids of a prompt do not depend on how it was cut."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ids; incomplete UTF-8 becomes U+FFFD."""
        ...

    def save(self, directory: Path) -> list[Path]:
        """Write the tokenizer files of the public layout; returns what was written."""
        ...


# --------------------------------------------------------------------------------------------- weights
@dataclass(frozen=True, slots=True)
class TensorMap:
    """How one of our tensors is stored in a public checkpoint.

    Attributes:
        name: structured name in our model; ``shape`` its shape there.
        sources: public names, in the order that ``load`` takes and ``store`` returns them.
        source_shapes: their shapes.
        load: public arrays -> our array. ``store``: the reverse (``None``: this layout is only read).
        dtype: ``"float32"`` where the tensor must stay so whatever the model's dtype; ``""`` otherwise.
    """

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    source_shapes: tuple[tuple[int, ...], ...]
    load: Callable[[Sequence[Array]], Array]
    store: Callable[[Array], Sequence[Array]] | None
    dtype: str = ""


class StateAdapter(Protocol):
    """Public checkpoint names <-> ours, for the layouts ``"pt"`` (read and written) and ``"paddle"`` (read)."""

    def layout_of(self, names: Sequence[str]) -> str:
        """Which layout a file with these tensor names has; decided once per checkpoint."""
        ...

    def maps(self, layout: str, names: Sequence[str] = ()) -> Sequence[TensorMap]:
        """One map per tensor of our model. ``names``: what the checkpoint holds (layouts that vary need it)."""
        ...

    def ignored(self, name: str) -> bool:
        """A public tensor that this model leaves alone (e.g. MTP weights when MTP is off)."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """Which parallel style each parameter takes, as data.

    ``rules``: (pattern over structured names, style); the first match counts. Styles: ``column`` and ``row``
    (of a [in, out] weight), ``vocab`` (embedding or head over V), ``expert`` (first axis is experts),
    ``replicate``.
    """

    rules: tuple[tuple[str, str], ...]


# --------------------------------------------------------------------------------------------- model
@dataclass(frozen=True, slots=True)
class Features:
    """What a language model computes before its head.

    Attributes:
        hidden: [B, S, H] after the final norm, ready for the head.
        ahead: hidden states of the multi-token-prediction depths, each [B, S, H] after the final norm; depth n
            (0-based) at position t predicts token t + n + 2, i.e. ``labels`` shifted left by n + 1.
        auxiliary: scalars that are added to the loss for their gradient only (router losses with their
            coefficients); the reported loss excludes them.
    """

    hidden: Tensor
    ahead: tuple[Tensor, ...] = ()
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)


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

        Lets a loss compute logits in chunks or only at learned positions."""
        ...

    def after_step(self) -> None:
        """Called once after each optimizer step (e.g. aux-free router bias update). Usually does nothing."""
        ...


class Cache(Protocol):
    """Keys and values of past positions, one pair per layer; built by the generator."""

    #: how many positions are stored
    length: int

    def update(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append [B, S, heads, d] and return all keys and values so far, [B, K, heads, d]."""
        ...


# --------------------------------------------------------------------------------------------- training
@dataclass(frozen=True, slots=True)
class LossOutput:
    """What an objective returns for one micro-batch.

    Attributes:
        loss: scalar to call ``backward`` on, already divided by the step's totals.
        metrics: name -> (sum, weight); the step reports sum over micro-batches / weight over micro-batches.
            ``"loss"`` is always there. Sums may be 0-d tensors (read once per step) or floats.
    """

    loss: Tensor
    metrics: Mapping[str, tuple[Tensor | float, float]]


class Objective(Protocol):
    """A training objective: pure given the model's weights.

    A step over several micro-batches (and ranks) first adds up ``normalizers`` of all of them, then calls the
    objective on each with the totals: 1x4 and 4x1 micro-batches give the same gradient.
    """

    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """What this batch adds to each denominator, e.g. ``{"tokens": 311}``. numpy only, no paddle."""
        ...

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Forward pass and loss of one micro-batch."""
        ...


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Summed over the micro-batches of one step: metrics as (sum, weight), and tokens seen."""

    metrics: Mapping[str, tuple[float, float]]
    num_tokens: int


# --------------------------------------------------------------------------------------------- devices, ranks
@dataclass(frozen=True, slots=True)
class Cluster:
    """The processes of this run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    num_nodes: int = 1


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Degrees by axis (``data``, ``tensor``, ``pipeline``, ``expert``, ``context``, ``sharding``) and this rank's
    place among the data-parallel ranks."""

    degrees: Mapping[str, int]
    data_rank: int = 0
    data_size: int = 1


class Device(Protocol):
    """An opened or openable device. Building one imports nothing heavy; ``open`` imports paddle."""

    name: str
    #: dtypes that matrix products run in, e.g. ``{"float32"}``
    dtypes: frozenset[str]

    def environment(self) -> Mapping[str, str]:
        """Variables to set before paddle is imported. Pure, sorted, nothing host-specific in the values."""
        ...

    def open(self) -> None:
        """Import paddle and select the device; raises ``DeviceUnavailable`` with the vendor's install line."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts for the banner: processor or card, cores or count, memory."""
        ...

    def peak_memory(self) -> int:
        """Highest memory use so far, bytes."""
        ...


# --------------------------------------------------------------------------------------------- export, run
@dataclass(frozen=True, slots=True)
class ModelBundle:
    """A model with everything that a model directory holds."""

    model: Layer
    architecture: Json
    adapter: StateAdapter
    tokenizer: Tokenizer | None
    generation: Json = field(default_factory=dict)
    provenance: Json = field(default_factory=dict)


class RunView(Protocol):
    """What callbacks see of a run. Read-only."""

    out: Path
    settings: Any
    step: int
    total_steps: int
    is_main: bool
    model: Layer

    def emit(self, event: str, **fields: object) -> None:
        """Append one event to events.jsonl and to every callback that shows events."""
        ...


class RowSource(Protocol):
    """Rows of one data file with their place, in file order."""

    def __iter__(self) -> Iterator[tuple[Origin, Json]]: ...
