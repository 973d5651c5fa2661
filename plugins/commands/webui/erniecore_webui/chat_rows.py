"""What a conversation of the page becomes: a request for a model's server, and a row of training data. Its images are files.

An image that is attached is kept below the directory of the runs, named after its content; the browser knows it by its address
here, a model's server gets it as a data URL, and a row has its path, relative to the file of the row.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore.api.data import MARKERS
from erniecore_webui.data_files import receive

#: directories below the root for rows that were saved, and in it for their images
DATA, IMAGES = "data", "images"
#: what an image of a message has as its address
ADDRESS = "/chat/image/"
_NAME = re.compile(r"[0-9a-f]{32}\.(png|jpg|webp|gif|bmp)")
_TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp", "gif": "image/gif", "bmp": "image/bmp"}
#: bytes of an image, and those that tell its type
IMAGE_BYTES, _HEAD = 16 << 20, 16
_ROLES = ("system", "user", "assistant", "tool")
_MESSAGE = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


async def keep_image(root: Path, parts: AsyncIterator[bytes], size: int) -> str:
    """Write an image of so many bytes below the root; its address.

    Raises:
        UsageError: it is none that models read, or too large, or it did not arrive whole.
    """
    if size > IMAGE_BYTES:
        raise UsageError("this image is too large", found=f"{size} bytes", expected=f"at most {IMAGE_BYTES}")
    folder = root / DATA / IMAGES
    part = folder / f"upload-{secrets.token_hex(8)}"
    try:
        await receive(part, parts, size)
        content = part.read_bytes()
        kind = _kind(content[:_HEAD])
        if not kind:
            raise UsageError("this is no image that models read", expected=", ".join(_TYPES).upper())
        name = f"{hashlib.sha256(content).hexdigest()[:32]}.{kind}"
        part.replace(folder / name)
        return ADDRESS + name
    finally:
        part.unlink(missing_ok=True)


def _kind(head: bytes) -> str:
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    known = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"BM": "bmp"}
    return next((kind for begin, kind in known.items() if head.startswith(begin)), "")


def image_path(root: Path, name: str) -> Path | None:
    """The file of an image; None where there is none of this name."""
    path = root / DATA / IMAGES / name
    return path if _NAME.fullmatch(name) and path.is_file() and not path.is_symlink() else None


def image_type(path: Path) -> str:
    """The media type of an image file by its ending."""
    return _TYPES[path.suffix[1:]]


def with_images(root: Path, messages: object) -> object:
    """Messages whose images are data URLs in place of addresses here. Raises ``UsageError`` for an image that is gone."""
    if not isinstance(messages, list):
        return messages
    return [
        {**item, "content": [_sent(root, part) for part in item["content"]]}
        if isinstance(item, dict) and isinstance(item.get("content"), list)
        else item
        for item in messages
    ]


def _sent(root: Path, part: object) -> object:
    address = _address(part)
    if not address.startswith(ADDRESS):
        return part
    path = image_path(root, address.removeprefix(ADDRESS))
    if path is None:
        raise UsageError("this image is not here any more", where=address, fix="attach it again")
    content = base64.b64encode(path.read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{image_type(path)};base64,{content}"}}


def _address(part: object) -> str:
    """Of a part that is an image; ``""`` for another one."""
    source = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
    return str(source.get("url", "")) if isinstance(source, dict) else ""


def row_of(given: dict[str, Any]) -> dict[str, Any]:
    """A row of the format ``messages``: a conversation that ends with an answer, or a prompt with two answers to it, each one or
    more messages, with the calls of tools and their results. ``tools`` and ``images`` stand beside the messages.

    Raises:
        UsageError: no such row.
    """
    messages, images = given.get("messages"), list[str]()
    if not isinstance(messages, list) or not messages:
        raise UsageError("there is no message to save", where="messages")
    row: dict[str, Any] = {"messages": [_message(item, images) for item in messages]}
    choice = [key for key in ("chosen", "rejected") if key in given]
    if len(choice) == 1 or (row["messages"][-1]["role"] == "assistant") == bool(choice):
        raise UsageError(
            "this is no row", where="messages", expected="an answer at the end, or a prompt with two answers"
        )
    row |= {key: _ending(given[key], images) for key in choice}
    for said in [row[key][-1] if isinstance(row[key], list) else row[key] for key in choice] or row["messages"][-1:]:
        if not said["content"].strip() and not said.get("tool_calls"):
            raise UsageError("an empty answer teaches nothing", where="messages")
    beside = {"tools": given.get("tools"), "images": images}
    if beside["tools"] is not None and not isinstance(beside["tools"], list):
        raise UsageError("this is no list of tools", where="tools", found=str(beside["tools"])[:80])
    return row | {key: value for key, value in beside.items() if value}


def _ending(given: object, images: list[str]) -> object:
    """A message, or several that begin and end with the assistant."""
    said = [_message(item, images) for item in (given if isinstance(given, list) else [given])]
    if not said or said[0]["role"] != "assistant" or said[-1]["role"] != "assistant":
        raise UsageError(
            "this is no answer", where="messages", expected="messages that begin and end with the assistant"
        )
    return said if isinstance(given, list) else said[0]


def _message(item: object, images: list[str]) -> dict[str, Any]:
    """A message with its text; ``images`` gets the paths of its images."""
    if not isinstance(item, dict) or item.get("role") not in _ROLES:
        raise UsageError("this is no message", where="messages", found=str(item)[:80])
    kept = {key: item[key] for key in _MESSAGE if item.get(key)}
    return kept | {"content": _text(item.get("content"), item["role"] == "user", images)}


def _text(content: object, seen: bool, images: list[str]) -> str:
    """Text, with a marker for each image of a question."""
    if isinstance(content, str):
        found = [content]
    else:
        found = []
        for part in content if isinstance(content, list) and seen else [None]:
            name = _address(part).removeprefix(ADDRESS)
            if _NAME.fullmatch(name):
                images.append(f"{IMAGES}/{name}")
                found.append(MARKERS["image"])
            elif isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
                found.append(part["text"])
            else:
                raise UsageError("only text and images that were attached here can be saved", where="messages",
                                 found=str(part)[:80])  # fmt: skip
    text = "".join(found)
    if images and text.count(MARKERS["image"]) != found.count(MARKERS["image"]):
        raise UsageError("a text beside images has their marker", where="messages", found=MARKERS["image"],
                         fix="write it otherwise")  # fmt: skip
    return text
