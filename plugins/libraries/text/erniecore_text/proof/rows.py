"""The rows whose prompts are compared: of the run that trained the model where its directory is known, else a few of our own,
which have what templates treat differently (system text, turns, tools and their results, reasoning, images).
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from erniecore.api import ErnieError, Json
from erniecore.api.data import (
    IMAGE_MARKER,
    Conversation,
    Media,
    Message,
    Origin,
    Preference,
    Record,
    ToolCall,
    UnpairedPreference,
)

if TYPE_CHECKING:
    from erniecore.api.command import LoadedSettings
    from erniecore.api.model import Tokenizer

#: rows that are compared, and those of each file that they are chosen from
ROWS, LOOKED_AT = 16, 200
RESOLVED = "resolved.yaml"


@dataclass(frozen=True)
class ProofRow:
    """A conversation and where it is from."""

    where: str
    messages: tuple[Message, ...]
    tools: tuple[Json, ...] = ()


class RunRows(NamedTuple):
    """Of a run: its rows, the tokenizer that it trained with (``None``: that of the model directory), and notes."""

    rows: list[ProofRow]
    tokenizer: Tokenizer | None
    notes: list[str]


def _image() -> str:
    """A PNG file of 56 x 56 gray pixels as a data URL."""
    side = 56

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = zlib.compress((b"\0" + b"\x80" * side) * side)
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n" + block(b"IHDR", header) + block(b"IDAT", lines) + block(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(file).decode()


def shipped_rows(*, images: bool) -> list[ProofRow]:
    """Our own rows; ``images``: also one with an image."""
    system, ask, more = Message("system", "Be brief."), Message("user", "2 plus 2?"), Message("user", " and 3 more\n")
    foreign = Message("user", "春眠不觉晓，处处闻啼鸟。 é 🙂\tif x:\n")
    plain, last = Message("assistant", "It is 4."), Message("assistant", "7")
    thought = Message("assistant", "7", "4 and 3")
    call = ToolCall("weather", '{"city": "Oslo"}')
    result, told = Message("tool", '{"t": 3}'), Message("assistant", "3 degrees")
    tool: Json = {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    found: dict[str, tuple[tuple[Message, ...], tuple[Json, ...]]] = {
        "a question": ((ask, plain), ()),
        "a system text": ((system, ask, plain), ()),
        "several turns": ((system, ask, plain, more, last), ()),
        "other scripts": ((foreign, plain), ()),
        "reasoning": ((ask, thought), ()),
        "reasoning in the last of several turns": ((ask, plain, more, thought), ()),
        "reasoning in several turns": ((ask, thought, more, thought), ()),
        "tools that are not called": ((system, ask, plain), (tool,)),
        "a tool call and its result": ((ask, Message("assistant", "", "", (call,)), result, told), (tool,)),
        "a tool call with reasoning": ((ask, Message("assistant", "", "I ask", (call,)), result, told), (tool,)),
    }
    if images:
        seen = Message("user", f"What is this? {IMAGE_MARKER}", media=(Media(_image()),))
        found["an image"] = ((seen, plain), ())
        found["an image in an earlier turn"] = ((seen, plain, more, last), ())
    return [ProofRow(f"shipped row '{name}'", messages, tools) for name, (messages, tools) in found.items()]


def run_directory(model: Path) -> Path | None:
    """The directory of the run that wrote ``model`` (a run, its ``model/``, or a checkpoint); ``None``: it is not there."""
    place = model.resolve()
    return next((at for at in (place, *list(place.parents)[:2]) if (at / RESOLVED).is_file()), None)


def run_rows(run: Path) -> RunRows:
    """Rows and tokenizer of a run. What cannot be read is a note: data may be elsewhere by now."""
    from erniecore.api.command import load_settings

    try:
        loaded = load_settings(run / RESOLVED, complete=False)
    except ErnieError as error:
        return RunRows([], None, [f"the settings of the run {run} cannot be read: {error}"])
    rows, notes = [], []
    try:
        rows = varied(_rows(loaded), ROWS)
    except ErnieError as error:
        notes.append(f"the data of the run {run} cannot be read: {error}")
    try:
        tokenizer = _tokenizer(loaded)
    except ErnieError as error:
        notes.append(f"the tokenizer that the run {run} read is gone: {error}")
        tokenizer = None
    return RunRows(rows, tokenizer, notes)


def _tokenizer(loaded: LoadedSettings) -> Tokenizer | None:
    model = loaded.settings.model
    directory = model.tokenizer or model.path
    if not directory:
        return None
    found: Tokenizer = loaded.host.hook.ernie_build_tokenizer(config=model, directory=Path(directory))
    return found


def _rows(loaded: LoadedSettings) -> Iterator[ProofRow]:
    from erniecore.api.rows import parse, resolve

    data = loaded.settings.data
    for source in resolve(data.train, data.format, loaded.settings.formats):
        for position, raw in islice(source.parser.split(source.path), LOOKED_AT):
            origin = Origin(source.file, position)
            try:
                row = row_of(parse(source, raw, origin), origin.place())
            except ErnieError:
                continue  # the run dropped it too, and said so
            if row is not None:
                yield row


def row_of(record: Record, where: str) -> ProofRow | None:
    """The conversation of a record; of a preference the chosen one, of a document none."""
    if isinstance(record, Preference):
        return ProofRow(where, (*record.prompt, *record.chosen), tuple(record.tools))
    if isinstance(record, Conversation | UnpairedPreference):
        return ProofRow(where, tuple(record.messages), tuple(record.tools))
    return None


def varied(rows: Iterable[ProofRow], count: int) -> list[ProofRow]:
    """The first row of each kind, then the first ones of all, ``count`` at most; in order."""
    every = list(rows)
    first: dict[object, int] = {}
    for at, row in enumerate(every):
        first.setdefault(_kind(row), at)
    chosen = [*first.values(), *(at for at in range(len(every)) if at not in set(first.values()))]
    return [every[at] for at in sorted(chosen[:count])]


def _kind(row: ProofRow) -> Sequence[object]:
    """What templates look at, up to the sixth message."""
    told = tuple((m.role, bool(m.reasoning), bool(m.tool_calls), bool(m.media)) for m in row.messages[:6])
    return (*told, bool(row.tools))
