"""Images of rows: ``<image>`` markers with a list beside the messages, OpenAI's parts, and ERNIEKit's ``image_info``.

What a file holds is nobody's business here: sources are noted, with the path in the row, and read by the model's plugin.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from erniecore.api import Json, counted
from erniecore.api.data import IMAGE_MARKER, Media, Message, Origin
from erniecore_formats import checks

IMAGE_PARTS = ("image", "image_url")
_NAMES = ("url", "path", "value", "image", "image_url", "source")
_EXPECTED = "a path or a data URL"


def of_part(part: Mapping[str, Any], where: str) -> Media:
    """The image of a part: ``{"type": "image_url", "image_url": {"url": …}}``, the same with a text, and with ``value``,
    ``image``, ``url`` or ``path``. ``{"type": "image"}`` alone, as TRL has it, stands for one of ``images``: it has no source."""
    name = next((name for name in ("image_url", "image", "value", "url", "path", "source") if name in part), None)
    if part["type"] == "image" and (name is None or part[name] is None):
        return Media("", where=where)
    if name is None:
        raise checks.missing(part, str(part["type"]), where)
    return _source(part[name], f"{where}.{name}")


def _source(value: object, where: str) -> Media:
    if isinstance(value, dict):
        name = next((name for name in _NAMES if name in value), None)
        if name is None:
            raise checks.missing(value, "url", where)
        value, where = value[name], f"{where}.{name}"
    if not isinstance(value, str) or not value:
        raise checks.wrong_type(value, where, _EXPECTED)
    return Media(value, where=where)


def marked(row: Json, messages: Sequence[Message], origin: Origin) -> list[Message]:
    """``messages`` with the images of ``row["images"]`` at their markers and at parts without a source, or with those of their
    parts, and with the place that relative paths start from. Raises ``RowError`` where places and images are not as many."""
    beside = row.get("images") or []
    listed = beside if isinstance(beside, list) else [beside]
    parts = [media for message in messages for media in message.media]
    if not listed and not parts:
        return list(messages)
    if listed and any(media.source for media in parts):
        raise checks.bad_value("images stand in parts and beside the messages", "$.images", beside, "one of both")
    sources = [_source(value, f"$.images[{i}]") for i, value in enumerate(listed)]
    by_marker = bool(listed) and not parts
    markers = [m.content.count(IMAGE_MARKER) if by_marker and m.role == "user" else 0 for m in messages]
    places = sum(markers) + sum(not media.source for media in parts)
    if places != len(sources):
        found = f"{counted(places, IMAGE_MARKER + ' marker')} in questions, {counted(len(sources), 'image')}"
        fix = f"write {IMAGE_MARKER} where an image stands in a question, once for each of $.images"
        raise checks.lengths_differ("$.images", found, "as many markers as images", fix)
    left, out = iter(sources), []
    for message, count in zip(messages, markers, strict=True):
        here = [media if media.source else next(left) for media in message.media]
        here += [next(left) for _ in range(count)]
        out.append(replace(message, media=tuple(placed(media, origin) for media in here)))
    return out


def placed(media: Media, origin: Origin) -> Media:
    """Relative paths start at the directory of the data file."""
    return replace(media, base=os.path.dirname(origin.file) or ".")


def refuse(messages: Sequence[Message]) -> None:
    """Raise ``RowError`` for answers with images: those of a preference stand in the prompt."""
    for media in (media for message in messages for media in message.media):
        raise checks.media(media.where, media.source)


def sources(messages: Sequence[Message]) -> dict[str, list[str]]:
    """The field ``images`` of a row, if it needs one."""
    found = [media.source for message in messages for media in message.media]
    return {"images": found} if found else {}
