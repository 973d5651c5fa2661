"""Images and videos of messages: their parts become what the model's chat template reads, as in training. Nothing is fetched,
and no file is read that lies outside of the directories which the settings name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import unquote

from erniecore.api import DataError
from erniecore.api.data import MARKERS, Media, MediaReader
from erniecore.api.model import ChatTemplate
from erniecore_openai.errors import ApiError
from erniecore_openai.schemas.chat import ImagePart, TextPart, VideoPart

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:", re.ASCII)


def seen_content(
    parts: Sequence[TextPart | ImagePart | VideoPart], template: ChatTemplate, where: str, roots: Sequence[str]
) -> tuple[str, tuple[Media, ...]]:
    """Text with a marker for each image and video, and these.

    Args:
        where: the list of parts in the request. roots: directories of local files.

    Raises:
        ApiError: 400 with the place of a part that this model does not read, is fetched from somewhere, or is a marker.
    """
    texts, media = [], []
    for index, part in enumerate(parts):
        if isinstance(part, TextPart):
            texts.append(part.text)
            continue
        place, image = f"{where}[{index}]", isinstance(part, ImagePart)
        if not isinstance(template, MediaReader):
            refuse(
                place, f"this model reads text; parts of type {part.type} are not supported", "unsupported_parameter"
            )
        url = part.image_url.url if isinstance(part, ImagePart) else part.video_url.url
        source, base = _source(url, place, roots)
        media.append(Media(source, base, f"{place}.{part.type}.url", "image" if image else "video"))
        texts.append(MARKERS[media[-1].kind])
    content, kinds = "".join(texts), [found.kind for found in media]
    for kind in set(kinds):
        # in the whole text, as a marker may also be cut: "<im" ends a part, "age>" begins the next one
        if content.count(MARKERS[kind]) != kinds.count(kind):
            texts_with = (i for i, p in enumerate(parts) if isinstance(p, TextPart) and MARKERS[kind] in p.text)
            place = next((f"{where}[{i}]" for i in texts_with), where)
            refuse(place, f"{MARKERS[kind]} in the text of a message with such parts would stand for another one")
    return content, tuple(media)


def _source(url: str, place: str, roots: Sequence[str]) -> tuple[str, str]:
    """What to read, and the directory that it has to lie in."""
    if url.startswith("data:"):
        return url, ""
    path = unquote(url.removeprefix("file://")) if url.startswith("file:///") else url
    if _SCHEME.match(path):
        refuse(place, "URLs are not fetched; send the content as a data URL: data:image/png;base64,...")
    if not roots:
        refuse(place, "files of the server are not read; send the content as a data URL: data:image/png;base64,...")
    found = os.path.normpath(path)
    below = (root for root in roots if found.startswith(os.path.join(os.path.abspath(root), "")))
    return path, os.path.abspath(next(below, roots[0]))


def unreadable(error: DataError, where: str) -> ApiError:
    """An image or video that cannot be read, with the place of its part; paths of the server are left out."""
    text = error.message + (f"; expected {error.expected}" if error.expected and os.sep not in error.expected else "")
    return ApiError(400, f"{where}: {text}", param="messages", code="invalid_media")


def refuse(place: str, reason: str, code: str = "invalid_media") -> NoReturn:
    """Raise ``ApiError`` 400 for a part."""
    raise ApiError(400, f"{place}: {reason}", param="messages", code=code)
