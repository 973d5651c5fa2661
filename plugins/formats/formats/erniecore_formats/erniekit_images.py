"""ERNIEKit's rows with images and videos: ``text_info`` (texts in turn, tagged ``mask`` or ``no_mask``), ``image_info`` and
``video_info``, whose ``matched_text_index`` says before which text each stands; ``order`` where it is given, and where a row has
both.
"""

from __future__ import annotations

from typing import Any, Literal

from erniecore.api import Json
from erniecore.api.data import MARKERS, Conversation, Media, Message, Origin
from erniecore_formats import checks, media

_TAGS: dict[str, Literal["user", "assistant"]] = {"mask": "user", "no_mask": "assistant"}
#: fields that would change what is learned, and are not read
_UNREAD = ("tools", "prefix")


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return "text_info" in row


def parse(row: Json, origin: Origin) -> Conversation:
    """One row as a conversation."""
    for name in _UNREAD:
        if row.get(name):
            raise checks.bad_value(f"{name!r} is not read", f"$.{name}", row[name], "texts and images", "leave it out")
    texts = [_object(item, f"$.text_info[{i}]") for i, item in enumerate(_list(row, "text_info"))]
    before = _places(row, len(texts))
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
    kinds = sorted({one.kind for one in found})
    if next(media.kinds_in(text, kinds), None):
        raise checks.bad_value("the text has a marker, which stands for media", f"{where}.text", text, "a text")
    learn = checks.flag(item["label"], f"{where}.label") if "label" in item else True
    return Message(role, "".join(MARKERS[one.kind] for one in found) + text, learn=learn, media=found)


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


def _places(row: Json, count: int) -> list[list[Media]]:
    """For each text the images and videos that stand before it, in order."""
    listed = {kind: _of_kind(row, kind, count) for kind in media.FIELDS}
    out: list[list[Media]] = [[] for _ in range(count)]
    if row.get("order") is not None:
        ordered = _ordered(row["order"], count, {kind: len(items) for kind, items in listed.items()})
        for place in sorted({place for _, _, place in ordered}):
            here = [(kind, i) for kind, i, at in ordered if at == place]
            # those of one kind by their numbers
            left = {kind: iter(sorted(i for k, i in here if k == kind)) for kind in media.FIELDS}
            found = [listed[kind][next(left[kind])][1] for kind, _ in here]
            if not place < count:
                raise checks.bad_value("no text stands behind it", found[0].where, found[0].source, "a question")
            out[place] += found
        return out
    if all(listed.values()):
        raise checks.missing(row, "order")
    for place, one in (item for items in listed.values() for item in items):
        out[place].append(one)
    return out


def _of_kind(row: Json, kind: media.Kind, count: int) -> list[tuple[int, Media]]:
    """(text that it stands before, what it is) of each entry of ``image_info`` or ``video_info``."""
    found = []
    for i, value in enumerate(_list(row, f"{kind}_info")):
        where = f"$.{kind}_info[{i}]"
        item = _object(value, where)
        place = item.get("matched_text_index", 0)
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < count:
            raise checks.bad_value("no text has this number", f"{where}.matched_text_index", place, f"0 to {count - 1}")
        if item.get("extracted_frame_indices"):
            name = "extracted_frame_indices"
            fix = "leave it out, or give the frames as images in a list"
            raise checks.bad_value(f"{name!r} is not read", f"{where}.{name}", item[name], "a video", fix)
        url = {f"{kind}_url": item["image_url"]} if "image_url" in item and f"{kind}_url" not in item else {}
        found.append((place, media.of_part({"type": f"{kind}_url", **item, **url}, where)))
    return found


def _ordered(order: object, count: int, media_counts: dict[media.Kind, int]) -> list[tuple[media.Kind, int, int]]:
    """(kind, number, text that follows) of each image and video, as ``order`` has them: a list of ``{"type": "text", "image" or
    "video", "index": n}``, or two lists ``type`` and ``index``."""
    where, expected = "$.order", "every text, image and video once, texts in turn"
    if isinstance(order, dict) and isinstance(order.get("type"), list) and isinstance(order.get("index"), list):
        order = [{"type": kind, "index": i} for kind, i in zip(order["type"], order["index"], strict=False)]
    if not isinstance(order, list) or not all(isinstance(item, dict) for item in order):
        raise checks.wrong_type(order, where, "a list of objects with `type` and `index`")
    kinds: list[tuple[Any, Any]] = [(item.get("type"), item.get("index")) for item in order]
    texts = [i for kind, i in kinds if kind == "text"]
    all_of = [("text", i) for i in range(count)] + [(kind, i) for kind, n in media_counts.items() for i in range(n)]
    if sorted(map(repr, kinds)) != sorted(map(repr, all_of)) or texts != sorted(texts):
        raise checks.bad_value("the order does not fit the texts and images", where, order, expected)
    out, following = [], 0
    for kind, i in kinds:
        if kind == "text":
            following = i + 1
        else:
            out.append((kind, i, following))
    return out


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
