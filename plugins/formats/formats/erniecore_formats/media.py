"""Images and videos of rows: ``<image>`` and ``<video>`` markers with lists beside the messages, OpenAI's parts, and ERNIEKit's
``image_info`` and ``video_info``.

What a file holds is nobody's business here: sources are noted, with the path in the row, and read by the model's plugin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from erniecore.api import Json, counted
from erniecore.api.data import MARKERS, Media, Message, Origin
from erniecore_formats import checks

Kind: TypeAlias = Literal["image", "video"]
#: type of a part -> kind
PARTS: Mapping[str, Kind] = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"}
#: kind -> the list beside the messages
FIELDS: Mapping[Kind, str] = {"image": "images", "video": "videos"}
_NAMES = ("url", "path", "value", "image", "image_url", "video", "video_url", "source")
_EXPECTED: Mapping[Kind, str] = {"image": "a path or a data URL", "video": "a path, a data URL or a list of frames"}


def of_part(part: Mapping[str, Any], where: str) -> Media:
    """The image or video of a part: ``{"type": "image_url", "image_url": {"url": …}}``, the same with a text, and with
    ``value``, ``image``, ``url`` or ``path``; of a video also a list of frames. ``{"type": "image"}`` alone, as TRL has it,
    stands for one of ``images``: it has no source."""
    kind = PARTS[part["type"]]
    names = (f"{kind}_url", kind, "value", "url", "path", "source")
    name = next((name for name in names if name in part), None)
    if part["type"] == kind and (name is None or part[name] is None):
        return Media("", where=where, kind=kind)
    if name is None:
        raise checks.missing(part, str(part["type"]), where)
    return _source(part[name], f"{where}.{name}", kind)


def _source(value: object, where: str, kind: Kind) -> Media:
    if isinstance(value, dict):
        name = next((name for name in _NAMES if name in value), None)
        if name is None:
            raise checks.missing(value, "url", where)
        value, where = value[name], f"{where}.{name}"
    if kind == "video" and isinstance(value, list) and value:
        frames = tuple(_source(frame, f"{where}[{i}]", "image").source for i, frame in enumerate(value))
        return Media(frames[0], where=where, kind=kind, frames=frames)
    if not isinstance(value, str) or not value:
        raise checks.wrong_type(value, where, _EXPECTED[kind])
    return Media(value, where=where, kind=kind)


def kinds_in(text: str, kinds: Sequence[Kind]) -> Iterator[Kind]:
    """Of the markers of these kinds, in order."""
    by_marker = {MARKERS[kind]: kind for kind in kinds}
    return (by_marker[found] for found in re.findall("|".join(by_marker), text)) if by_marker else iter(())


def marked(row: Json, messages: Sequence[Message], origin: Origin) -> list[Message]:
    """``messages`` with what ``row["images"]`` and ``row["videos"]`` list at its markers and at parts without a source, or with
    that of their parts, and with the place that relative paths start from. Raises ``RowError`` where places and media are not
    as many."""
    parts = [media for message in messages for media in message.media]
    beside = {kind: _listed(row, kind, parts) for kind in FIELDS}
    if not any(beside.values()) and not parts:
        return list(messages)
    by_marker = [] if parts else [kind for kind in FIELDS if beside[kind]]
    found = [list(kinds_in(m.content, by_marker)) if m.role == "user" else [] for m in messages]
    for kind, sources in beside.items():
        places = sum(kinds.count(kind) for kinds in found)
        _check_count(kind, places + sum(media.kind == kind and not media.source for media in parts), len(sources))
    left = {kind: iter(sources) for kind, sources in beside.items()}
    out = []
    for message, kinds in zip(messages, found, strict=True):
        here = [media if media.source else next(left[media.kind]) for media in message.media]
        here += [next(left[kind]) for kind in kinds]
        out.append(replace(message, media=tuple(placed(media, origin) for media in here)))
    return out


def _listed(row: Json, kind: Kind, parts: Sequence[Media]) -> list[Media]:
    """The sources of one kind that stand beside the messages."""
    name = FIELDS[kind]
    beside = row.get(name) or []
    if beside and any(media.kind == kind and media.source for media in parts):
        message = f"{name} stand in parts and beside the messages"
        raise checks.bad_value(message, f"$.{name}", beside, "one of both")
    listed = beside if isinstance(beside, list) else [beside]
    return [_source(value, f"$.{name}[{i}]", kind) for i, value in enumerate(listed)]


def _check_count(kind: Kind, places: int, count: int) -> None:
    if places != count:
        name, marker = FIELDS[kind], MARKERS[kind]
        found = f"{counted(places, marker + ' marker')} in questions, {counted(count, kind)}"
        fix = f"write {marker} where one stands in a question, once for each of $.{name}"
        raise checks.lengths_differ(f"$.{name}", found, f"as many markers as {name}", fix)


def placed(media: Media, origin: Origin) -> Media:
    """Relative paths start at the directory of the data file."""
    return replace(media, base=os.path.dirname(origin.file) or ".")


def refuse(messages: Sequence[Message]) -> None:
    """Raise ``RowError`` for answers with images: those of a preference stand in the prompt."""
    for media in (media for message in messages for media in message.media):
        raise checks.media(media.where, media.source)


def sources(messages: Sequence[Message]) -> dict[str, list[object]]:
    """The fields ``images`` and ``videos`` of a row, as far as it needs them."""
    found = [media for message in messages for media in message.media]
    fields: dict[str, list[object]] = {
        name: [list(media.frames) or media.source for media in found if media.kind == kind]
        for kind, name in FIELDS.items()
    }
    return {name: listed for name, listed in fields.items() if listed}
