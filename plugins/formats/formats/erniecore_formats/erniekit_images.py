"""ERNIEKit's rows with images: ``text_info`` (texts in turn, tagged ``mask`` or ``no_mask``) and ``image_info``, whose
``matched_text_index`` says before which text an image stands; ``order`` where it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from erniecore.api import Json
from erniecore.api.data import IMAGE_MARKER, Conversation, Media, Message, Origin
from erniecore_formats import checks, media

_TAGS: dict[str, Literal["user", "assistant"]] = {"mask": "user", "no_mask": "assistant"}
#: fields that would change what is learned, and are not read
_UNREAD = ("video_info", "tools", "prefix")


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return "text_info" in row


def parse(row: Json, origin: Origin) -> Conversation:
    """One row as a conversation."""
    for name in _UNREAD:
        if row.get(name):
            raise checks.bad_value(f"{name!r} is not read", f"$.{name}", row[name], "texts and images", "leave it out")
    texts = [_object(item, f"$.text_info[{i}]") for i, item in enumerate(_list(row, "text_info"))]
    images = [_object(item, f"$.image_info[{i}]") for i, item in enumerate(_list(row, "image_info"))]
    before = _places(row, len(texts), images)
    system = row.get("is_system") == 1
    messages: list[Message] = [Message("system", _text(texts[0], 0))] if system else []
    for i, item in enumerate(texts):
        if i < 2 * system:
            if before[i]:
                raise checks.bad_value(
                    "an image in the system text", before[i][0].where, before[i][0].source, "a question"
                )
            continue
        found = tuple(media.placed(one, origin) for one in before[i])
        role = _role(item, i, system)
        if role == "assistant" and found:
            raise checks.bad_value("an image stands before an answer", found[0].where, found[0].source, "a question")
        messages.append(_message(role, _text(item, i), found, item, i))
    if len(messages) == system or messages[-1].role != "assistant":
        raise checks.bad_value("the last text must be an answer", "$.text_info", texts[-1].get("tag"), "no_mask")
    return Conversation(tuple(messages), origin=origin)


def _message(role: Any, text: str, found: tuple[Media, ...], item: dict[str, Any], i: int) -> Message:
    where = f"$.text_info[{i}]"
    if item.get("tool_calls") or item.get("tool_response"):
        raise checks.bad_value("tools are not read in rows with images", where, item, "texts and images")
    if found and IMAGE_MARKER in text:
        raise checks.bad_value(
            f"the text has {IMAGE_MARKER}, which stands for an image", f"{where}.text", text, "a text"
        )
    learn = checks.flag(item["label"], f"{where}.label") if "label" in item else True
    return Message(role, IMAGE_MARKER * len(found) + text, learn=learn, media=found)


def _role(item: dict[str, Any], i: int, system: bool) -> Literal["user", "assistant"]:
    where, found = f"$.text_info[{i}].tag", item.get("tag")
    role = _TAGS.get(found) if isinstance(found, str) else None
    if role is None:
        raise checks.bad_value("the tag is unknown", where, found, "mask or no_mask")
    expected: str = "user" if i % 2 == 0 else "assistant"
    if role != expected:
        names = {str(role): tag for tag, role in _TAGS.items()}
        raise checks.bad_value(
            "mask and no_mask come in turn", where, found, names[expected], "join neighbors of one tag"
        )
    return role


def _places(row: Json, count: int, images: Sequence[dict[str, Any]]) -> list[list[Media]]:
    """For each text the images that stand before it."""
    at = [item.get("matched_text_index", 0) for item in images]
    if row.get("order") is not None:
        at = _ordered(row["order"], count, len(images))
    out: list[list[Media]] = [[] for _ in range(count)]
    for i, (item, place) in enumerate(zip(images, at, strict=True)):
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < count:
            where = f"$.image_info[{i}].matched_text_index"
            raise checks.bad_value("no text has this number", where, place, f"0 to {count - 1}")
        out[place].append(media.of_part({"type": "image_url", **item}, f"$.image_info[{i}]"))
    return out


def _ordered(order: object, count: int, images: int) -> list[int]:
    """Which text follows each image, as ``order`` has them: a list of ``{"type": "text" or "image", "index": n}``, or two
    lists ``type`` and ``index``."""
    where, expected = "$.order", "every text and image once, texts in turn"
    if isinstance(order, dict) and isinstance(order.get("type"), list) and isinstance(order.get("index"), list):
        order = [{"type": kind, "index": i} for kind, i in zip(order["type"], order["index"], strict=False)]
    if not isinstance(order, list) or not all(isinstance(item, dict) for item in order):
        raise checks.wrong_type(order, where, "a list of objects with `type` and `index`")
    kinds = [(item.get("type"), item.get("index")) for item in order]
    texts = [i for kind, i in kinds if kind == "text"]
    if sorted(map(repr, kinds)) != sorted(
        repr(item) for item in [*(("text", i) for i in range(count)), *(("image", i) for i in range(images))]
    ) or texts != sorted(texts):
        raise checks.bad_value("the order does not fit the texts and images", where, order, expected)
    at, following = [0] * images, count
    for kind, i in reversed(kinds):
        if kind == "text":
            following = i
        else:
            at[i] = following
    return at


def _list(row: Json, name: str) -> list[Any]:
    value = row.get(name) or []
    if not isinstance(value, list) or (name == "text_info" and not value):
        raise checks.wrong_type(row.get(name), f"$.{name}", "a list of objects")
    return value


def _object(item: object, where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise checks.wrong_type(item, where, "an object")
    return item


def _text(item: dict[str, Any], i: int) -> str:
    return checks.text(item.get("text"), f"$.text_info[{i}].text")
