"""Images and videos of messages: their parts become what the model's chat template reads, as in training. Nothing is fetched,
and no file is read that lies outside of the directories which the settings name.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote

import numpy as np
from erniecore_generation.media import MediaPart, PromptMedia, joined_media, read_part

from erniecore.api import DataError
from erniecore.api.data import MARKERS, Media, MediaReader
from erniecore.api.model import ChatTemplate
from erniecore_openai.errors import ApiError
from erniecore_openai.schemas.chat import ImagePart, TextPart, VideoPart

if TYPE_CHECKING:
    from erniecore_openai.rendering import Prompt
    from erniecore_openai.state import ServedModel, Serving

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


async def decoded(serving: Serving, request_id: str, model: ServedModel, prompt: Prompt) -> Prompt:
    """The prompt with its images, decoded side by side, off the thread for texts. Their memory is counted for the request as they
    come, until ``Serving.ended``.

    Raises:
        ApiError: an image that is damaged, with its place; more than the memory for images holds.
    """
    if not prompt.parts:
        return prompt
    serving.check_room()
    template, ids = model.tokenizer.chat_template, np.array(prompt.ids, np.int64)

    async def read(part: MediaPart, place: str) -> PromptMedia:
        try:
            found = await serving.in_images(read_part, template, ids, part)
        except DataError as error:
            raise unreadable(error, place) from error
        serving.hold_media(request_id, found.num_bytes)
        return found

    reading = [asyncio.ensure_future(read(*each)) for each in zip(prompt.parts, prompt.places, strict=True)]
    try:
        return replace(prompt, media=joined_media(prompt.parts, await asyncio.gather(*reading)))
    finally:
        for each in reading:
            each.cancel()


def unreadable(error: DataError, where: str) -> ApiError:
    """An image or video that cannot be read, with the place of its part; paths of the server are left out."""
    text = error.message + (f"; expected {error.expected}" if error.expected and os.sep not in error.expected else "")
    return ApiError(400, f"{where}: {text}", param="messages", code="invalid_media")


def refuse(place: str, reason: str, code: str = "invalid_media") -> NoReturn:
    """Raise ``ApiError`` 400 for a part."""
    raise ApiError(400, f"{place}: {reason}", param="messages", code=code)
