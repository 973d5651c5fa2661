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
    ``image``, ``url`` or ``path``."""
    name = next((name for name in ("image_url", "image", "value", "url", "path", "source") if name in part), None)
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
    """``messages`` with the images of ``row["images"]`` at their markers, or with those of their parts, and with the place
    that relative paths start from. Raises ``RowError`` where markers and images are not as many."""
    beside = row.get("images") or []
    if not beside and not any(m.media for m in messages):
        return list(messages)
    listed = beside if isinstance(beside, list) else [beside]
    if listed and any(m.media for m in messages):
        raise checks.bad_value("images stand in parts and beside the messages", "$.images", beside, "one of both")
    left = [_source(value, f"$.images[{i}]") for i, value in enumerate(listed)]
    places = sum(m.content.count(IMAGE_MARKER) for m in messages if m.role == "user") if listed else len(left)
    if places != len(left):
        found = f"{counted(places, IMAGE_MARKER + ' marker')} in questions, {counted(len(left), 'image')}"
        fix = f"write {IMAGE_MARKER} where an image stands in a question, once for each of $.images"
        raise checks.lengths_differ("$.images", found, "as many markers as images", fix)
    out = []
    for message in messages:
        count = message.content.count(IMAGE_MARKER) if listed and message.role == "user" else 0
        here, left = [*message.media, *left[:count]], left[count:]
        out.append(replace(message, media=tuple(placed(media, origin) for media in here)))
    return out


def placed(media: Media, origin: Origin) -> Media:
    """Relative paths start at the directory of the data file."""
    return replace(media, base=os.path.dirname(origin.file) or ".")


def refuse(messages: Sequence[Message]) -> None:
    """Raise ``RowError`` for messages with images where only texts are learned from."""
    for media in (media for message in messages for media in message.media):
        raise checks.media(media.where, media.source)


def sources(messages: Sequence[Message]) -> dict[str, list[str]]:
    """The field ``images`` of a row, if it needs one."""
    found = [media.source for message in messages for media in message.media]
    return {"images": found} if found else {}
