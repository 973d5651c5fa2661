"""Records: what a row of a data file means, before any tokenizer. Plain, frozen, light."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

Role = Literal["system", "user", "assistant", "tool"]
Json: TypeAlias = Mapping[str, Any]


class Origin(NamedTuple):
    """Where a record came from.

    Attributes:
        file: as given by the user.
        position: 1-based line, or row of a file without lines; below 0: element ``-1 - position`` of a JSON array on one line.
    """

    file: str
    position: int

    @property
    def line(self) -> int:
        """1-based; elements of an array on one line have this line in common."""
        return max(self.position, 1) if self.position else 0

    @property
    def element(self) -> int | None:
        """Which element of an array on one line, from 0; ``None``: the line says it."""
        return -1 - self.position if self.position < 0 else None

    def place(self, path: str = "") -> str:
        """``rows.jsonl:12 $.text`` or ``rows.json:1 [17].text``; ``path``: a JSON path within the row."""
        inside = path if self.element is None else f"[{self.element}]{path.removeprefix('$')}"
        return f"{self.file}:{self.line} {inside}".rstrip()


#: Origin of records that no file holds.
NOWHERE = Origin("", 0)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call by the assistant; ``arguments`` is JSON text."""

    name: str
    arguments: str


#: stand in the content of a message for each of its images and videos
IMAGE_MARKER, VIDEO_MARKER = "<image>", "<video>"
MARKERS: Mapping[str, str] = {"image": IMAGE_MARKER, "video": VIDEO_MARKER}


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a video of a message.

    Attributes:
        source: a path or a data URL, as the row has it. base: directory of the data file. where: JSON path in the row.
        frames: of a video that is given as images, their sources; ``source`` is the first one.
    """

    source: str
    base: str = ""
    where: str = "$"
    kind: Literal["image", "video"] = "image"
    frames: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message. ``learn`` matters for assistant messages only; ``reasoning`` is the thinking part. ``content`` has one of
    ``MARKERS`` for each of ``media``, in order; without media of a kind its marker is text like any other."""

    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    learn: bool = True
    media: tuple[Media, ...] = ()


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
class UnpairedPreference:
    """A conversation labeled desirable or undesirable, for KTO."""

    messages: tuple[Message, ...]
    desirable: bool
    tools: tuple[Json, ...] = ()
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Document:
    """Plain text for pre-training."""

    text: str
    origin: Origin = NOWHERE


Record: TypeAlias = "Conversation | Preference | UnpairedPreference | Document"


def messages_of(record: Record) -> tuple[Message, ...]:
    """The messages that may have media: of a preference those of its prompt."""
    if isinstance(record, Preference):
        return record.prompt
    return () if isinstance(record, Document) else record.messages
