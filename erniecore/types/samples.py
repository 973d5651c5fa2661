"""Samples and batches as numpy arrays, and the encoder that makes samples of records.

Letters: B batch, S sequence, n tokens of one sample. Labels are shifted already: ``labels[t]`` is the target of
position t.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from erniecore.types.records import NOWHERE, Message, Origin, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.int64]
    Array: TypeAlias = NDArray[Any]

#: Label of a position that is not learned.
IGNORE = -100


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
        parts: (name, tokens) of stretches that people should tell apart, such as two answers; in order, together n.
        media: what its placeholders stand for, in order, as a ``MediaReader`` writes it; changed media are other texts.
    """

    input_ids: IntArray
    labels: IntArray
    position_ids: IntArray
    end_rows: NDArray[np.int32]
    fields: Mapping[str, Array] = field(default_factory=dict)
    truncated: str = ""
    origin: Origin = NOWHERE
    parts: tuple[tuple[str, int], ...] = ()
    media: tuple[str, ...] = ()

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
        inputs: further inputs of the model by name, such as pixels; ``position_ids`` may be [B, S, axes] beside them.
        media: ``Sample.media`` of each sample, as ``origins``.
    """

    input_ids: IntArray
    labels: IntArray
    position_ids: IntArray
    startend_row_indices: NDArray[np.int32]
    fields: Mapping[str, Array]
    num_tokens: int
    num_samples: int
    origins: tuple[Origin, ...] = ()
    inputs: Mapping[str, Array] = field(default_factory=dict)
    media: tuple[tuple[str, ...], ...] = ()


class SeenMedia(NamedTuple):
    """How a model sees an image or a video.

    Attributes:
        kind: ``image`` or ``video``. source: as the row has it. tokens: placeholders that stand for it.
        width, height: pixels of each frame after resizing. seconds: times of the frames of a video; of an image none.
    """

    kind: str
    source: str
    tokens: int
    patches: int
    width: int
    height: int
    seconds: tuple[float, ...] = ()


class Draw(NamedTuple):
    """What random changes of media are a function of, besides the row and the medium: the run's seed, and the epoch from 0."""

    seed: int
    epoch: int


@runtime_checkable
class MediaReader(Protocol):
    """A chat template of a model that takes images: besides rendering, it knows what its placeholders stand for."""

    @property
    def token_inputs(self) -> frozenset[str]:
        """Names of the ``inputs`` that have a value for each token, [B, S, ...]. Of others those of an image follow those of
        the image before it, along the first axis."""
        ...

    def spans(self, ids: Sequence[int], media: Sequence[str]) -> list[tuple[int, int]]:
        """Begin and end of the placeholders in ``ids`` of each of ``Sample.media``."""
        ...

    def references(self, messages: Sequence[Message], ids: Sequence[int]) -> tuple[str, ...]:
        """``Sample.media`` of ids that ``messages`` became; the last ones may be cut off. Raises ``RowError``."""
        ...

    def patches(self, media: str) -> int:
        """How many patches the vision tower reads of one of ``Sample.media``."""
        ...

    def seen(self, media: str) -> SeenMedia:
        """What is known of one of ``Sample.media`` without decoding it."""
        ...

    def changes(self, sample: Sample, draw: Draw | None) -> Sequence[Sequence[Any]]:
        """For each medium of a training sample its random changes, each with a ``str`` that says what it does. A pure function;
        none without ``draw``."""
        ...

    def frames(self, media: str, changes: Sequence[Any] = ()) -> Iterator[bytes]:
        """PNG files of what the vision tower reads of one of ``Sample.media``, made of its patches: an image, or the frames of
        a video. Raises ``DataError`` for a file that has changed."""
        ...

    def reads_as(self, other: MediaReader) -> bool:
        """Whether a model with the reader ``other`` takes values that :meth:`complete` makes."""
        ...

    def unchanged(self, media: str) -> bool:
        """Whether the file of one of ``Sample.media`` still is what it was."""
        ...

    def complete(self, batch: Batch, rows: Sequence[Sequence[Sample]], *, draw: Draw | None = None) -> Batch:
        """The batch of these rows with the ``inputs`` and positions that its media ask for, of a training step with their
        :meth:`changes` of ``draw``. A pure function, also of the number of threads. Raises ``DataError`` for a file that has
        changed."""
        ...


class Encoder(Protocol):
    """Turns a record into samples; built by a method plugin. Pure, picklable, no paddle. One that fills ``Sample.media`` has
    an attribute ``media``, its ``MediaReader``; without it rows with media are refused."""

    #: record classes that this method understands, e.g. ``(Conversation,)``
    accepts: tuple[type, ...]

    def encode(self, record: Record) -> Sequence[Sample]:
        """The samples of one record; raises ``RowError`` when nothing of it can be learned."""
        ...


@runtime_checkable
class ExpectingEncoder(Protocol):
    """An encoder that can begin with something before it is asked: it is told of rows that come next."""

    def expect(self, record: Record) -> None:
        """``encode`` is going to be called for this record, after some others. Raises nothing."""
        ...


@runtime_checkable
class _WithMedia(Protocol):
    media: MediaReader | None


def expecting(encoder: Encoder | None) -> ExpectingEncoder | None:
    """The encoder, if it wants to hear of rows that come next."""
    return encoder if isinstance(encoder, ExpectingEncoder) else None


def media_reader(encoder: Encoder | None) -> MediaReader | None:
    """The reader of an encoder that fills ``Sample.media``."""
    return encoder.media if isinstance(encoder, _WithMedia) else None
