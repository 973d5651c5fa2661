"""Conversations with images as text: what stands where, with a placeholder for each token of an image. Text of users is
never read as special tokens. No pixels here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from erniecore.api.model import Segment

#: kind of a part -> its word, and the name in its tokens
MEDIA = {"image": ("Picture", "IMAGE"), "video": ("Video", "VIDEO")}
_THOUGHT = re.compile(r"\s*<think>\n?(?P<thought>.*?)\n?</think>\s*(?P<answer>.*)", re.DOTALL)


def segments(
    messages: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, Sequence[int]],
    *,
    think: bool = False,
    add_generation_prompt: bool = True,
) -> list[Segment]:
    """A conversation in pieces for ``Tokenizer.encode_segments``.

    Args:
        messages: roles system, user, assistant; the content of a user is text, or a list of parts
            ``{"type": "text", "text": …}``, ``{"type": "image"}``, ``{"type": "video"}``. An assistant's
            ``reasoning_content``, or thoughts in its content, are kept.
        tokens: for ``image`` and ``video`` how many tokens each image has, in the order of the conversation.
        think: the answer begins with thoughts; else with empty ones.
    Raises:
        ValueError: another role or part, and images without numbers or the reverse.
    """
    left = {kind: iter(list(tokens.get(kind, ()))) for kind in MEDIA}
    seen = dict.fromkeys(MEDIA, 0)
    found = [Segment("<|begin_of_sentence|>", trusted=True)]
    for index, message in enumerate(messages):
        for text, trusted, generated in _pieces(message, left, seen):
            found.append(Segment(text, trusted, index, generated))
    for kind, spare in left.items():
        if next(spare, None) is not None:
            raise ValueError(f"more images than the conversation has parts of type {kind}")
    if add_generation_prompt:
        found.append(Segment("\nAssistant: " + ("<think>" if think else "<think>\n\n</think>\n\n"), trusted=True))
    return [segment for segment in found if segment.text]


def _pieces(
    message: Mapping[str, Any], left: Mapping[str, Iterator[int]], seen: dict[str, int]
) -> Iterator[tuple[str, bool, bool]]:
    role, content = message["role"], message["content"]
    if role == "system":
        yield from ((content, False, False), ("\n", True, False))
    elif role == "user":
        yield "User: ", True, False
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield (part["text"], False, False) if part["type"] == "text" else (_media(part, left, seen), True, False)
    elif role == "assistant":
        yield "\nAssistant: ", True, False
        thought, answer = _thought(message)
        yield (f"<think>\n{thought}\n</think>\n" if thought else ""), False, True
        yield answer, False, True
        yield "<|end_of_sentence|>", True, True
    else:
        raise ValueError(f"a message of {role!r}; expected system, user or assistant")


def _media(part: Mapping[str, Any], left: Mapping[str, Iterator[int]], seen: dict[str, int]) -> str:
    kind = part["type"]
    if kind not in MEDIA:
        raise ValueError(f"a part of type {kind!r}; expected text, {' or '.join(MEDIA)}")
    count = next(left[kind], None)
    if count is None:
        raise ValueError(f"the conversation has more parts of type {kind} than there are images")
    seen[kind] += 1
    word, name = MEDIA[kind]
    return f"{word} {seen[kind]}:<|{name}_START|>" + f"<|{name}_PLACEHOLDER|>" * count + f"<|{name}_END|>"


def _thought(message: Mapping[str, Any]) -> tuple[str, str]:
    content, thought = message["content"], message.get("reasoning_content") or ""
    if not thought and (match := _THOUGHT.fullmatch(content)):
        return match["thought"], match["answer"]
    return thought, content
