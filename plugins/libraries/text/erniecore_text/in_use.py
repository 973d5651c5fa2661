"""A turn as the model writes it in use: the prompt that it is given, and what stands behind it. Segments only; no ids.

The prompt is the template's own, for exactly the messages before the turn. What the model writes is cut out of the
template's rendering of the turn, which need not begin with that prompt:

* with reasoning, or for templates without it, the rendering goes on where the prompt ends;
* a completion without reasoning behind a prompt that opens it (``<think>``) has an empty one, in the form of a full one;
* behind a prompt that has opened and closed it, such a completion follows at once.

Where none of these holds, nobody can say what the model would write, and the row is refused.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from erniecore.api import Json, RowError
from erniecore.api.data import Message, codes
from erniecore.api.model import ChatTemplate, Segment, Tokenizer

#: stands for reasoning until it is taken out again; nobody can write it
_EMPTY = f"reasoning{secrets.token_hex(12)}"
_CLOSED = re.compile(r"<think>\s*</think>\s*\Z")
#: tokens in front of a difference that an error shows
_CONTEXT = 8


class Piece(NamedTuple):
    """Text of one origin; neighbors that the template wrote are one piece unless ``generated`` changes."""

    text: str
    trusted: bool
    generated: bool = False


class WrittenTurn(NamedTuple):
    """``prompt``: what the model is given. ``completion``: what it writes, its end token last."""

    prompt: list[Segment]
    completion: list[Segment]


def served_prompt(
    template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Json] = (), thinking: bool | None = None
) -> list[Segment]:
    """What the model is given for the next completion, in training and in use."""
    return template.segments(messages, tools, add_generation_prompt=True, thinking=thinking)


def written_turn(
    tokenizer: Tokenizer, messages: Sequence[Message], turn: int, tools: Sequence[Json], where: str
) -> WrittenTurn:
    """Message ``turn``, the assistant's, behind the prompt that it completions.

    The prompt is the template's usual one where the turn can stand behind it, else one that asks for reasoning, or for
    none.

    Raises:
        RowError: the template has no such prompt, does not end the turn, or refuses the conversation.
    """
    template = tokenizer.chat_template
    assert template is not None
    history = messages[:turn]
    for thinking in (None, True, False):
        prompt = served_prompt(template, history, tools, thinking)
        rest = _completion(template, pieces(prompt, bare=True), history, messages[turn], tools)
        if rest is not None:
            ended = _to_its_end(rest, template.turn_end)
            if ended is None:
                raise _no_end(rest, template.turn_end, where)
            if messages[turn].reasoning and not _has_reasoning(template, history, messages[turn], tools):
                raise _no_place(where)
            return WrittenTurn(prompt, [Segment(p.text, p.trusted, turn, generated=True) for p in ended])
    raise _differs(tokenizer, served_prompt(template, history, tools), messages[: turn + 1], tools, where)


def pieces(segments: Sequence[Segment], *, bare: bool = False) -> list[Piece]:
    """Segments without their numbers, what the template wrote joined. ``bare``: nothing counts as generated."""
    out: list[Piece] = []
    for segment in segments:
        generated = segment.generated and not bare
        last = out[-1] if out else None
        if last is not None and last.trusted and segment.trusted and last.generated == generated:
            out[-1] = Piece(last.text + segment.text, True, generated)
        else:
            out.append(Piece(segment.text, segment.trusted, generated))
    return out


def _completion(
    template: ChatTemplate, prompt: list[Piece], history: Sequence[Message], turn: Message, tools: Sequence[Json]
) -> list[Piece] | None:
    """What stands behind ``prompt`` in a rendering of the turn, with all that the template writes behind the turn."""
    for before in _histories(history):
        rendered = pieces(template.segments([*before, turn], tools), bare=True)
        rest = _behind(prompt, rendered)
        if rest is None and not turn.reasoning:
            full = template.segments([*before, replace(turn, reasoning=_EMPTY)], tools)
            emptied = [replace(s, text=s.text.replace(_EMPTY, "")) for s in full]
            rest = _behind(prompt, pieces([s for s in emptied if s.text], bare=True))
            rest = _behind_closed(prompt, rendered) if rest is None else rest
        if rest is not None:
            return rest
    return None


def _histories(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """As they are, and as templates see them in use: reasoning only behind the last question."""
    yield messages
    question = max((i for i, m in enumerate(messages) if m.role == "user"), default=0)
    if any(m.reasoning for m in messages[:question]):
        yield [replace(m, reasoning="") if i < question else m for i, m in enumerate(messages)]


def _behind(prompt: list[Piece], rendered: list[Piece]) -> list[Piece] | None:
    """The rest of ``rendered`` if it begins with ``prompt``."""
    if not prompt:
        return rendered
    n, last = len(prompt) - 1, prompt[-1]
    if len(rendered) <= n or rendered[:n] != prompt[:n] or rendered[n].trusted != last.trusted:
        return None
    if not last.trusted:
        return rendered[n + 1 :] if rendered[n] == last else None
    return _cut(rendered, n, last.text)


def _behind_closed(prompt: list[Piece], rendered: list[Piece]) -> list[Piece] | None:
    """The same for a prompt that ends with reasoning opened and closed, which the rendering lacks."""
    closed = _CLOSED.search(prompt[-1].text) if prompt and prompt[-1].trusted else None
    n = len(prompt) - 1
    if closed is None or len(rendered) <= n or rendered[:n] != prompt[:n] or not rendered[n].trusted:
        return None
    stem = prompt[-1].text[: closed.start()]
    rest = _cut(rendered, n, stem)
    return _cut(rendered, n, stem.rstrip("\n")) if rest is None else rest


def _cut(rendered: list[Piece], n: int, start: str) -> list[Piece] | None:
    """What stands behind ``start``, with which piece ``n`` must begin."""
    text = rendered[n].text
    if not text.startswith(start):
        return None
    rest = [Piece(text[len(start) :], True)] if len(text) > len(start) else []
    return [*rest, *rendered[n + 1 :]]


def _to_its_end(rest: list[Piece], end: str) -> list[Piece] | None:
    """Up to the last end token; ``None``: there is none."""
    for i in reversed(range(len(rest))):
        at = rest[i].text.rfind(end) if rest[i].trusted else -1
        if at >= 0:
            return [*rest[:i], Piece(rest[i].text[: at + len(end)], True)]
    return None


def _has_reasoning(template: ChatTemplate, history: Sequence[Message], turn: Message, tools: Sequence[Json]) -> bool:
    marked = template.segments([*history, replace(turn, reasoning=_EMPTY)], tools)
    return any(_EMPTY in segment.text for segment in marked)


def _no_place(where: str) -> RowError:
    return RowError(
        "the chat template does not support reasoning",
        code=codes.TEMPLATE_REFUSED,
        where=f"{where}.reasoning",
        expected="a template of a model that reasons",
        fix="choose one with model.template, such as thinking, or remove the reasoning from the rows",
    )


def _no_end(rest: list[Piece], end: str, where: str) -> RowError:
    tail = "".join(piece.text for piece in rest)[-20:]
    return RowError(
        "a target turn does not end with the end token",
        code=codes.NO_END_TOKEN,
        where=where,
        found=repr(tail),
        expected=end,
    )


def _differs(
    tokenizer: Tokenizer, prompt: list[Segment], messages: Sequence[Message], tools: Sequence[Json], where: str
) -> RowError:
    """The error that shows the first token in which training and use would differ."""
    template = tokenizer.chat_template
    assert template is not None
    served, trained = (
        [i for part in tokenizer.encode_segments([replace(s, generated=False) for s in segments]) for i in part]
        for segments in (prompt, template.segments(messages, tools))
    )
    fix = (
        "repair the template so that a completion begins with its generation prompt, or choose one with model.template"
    )
    return tokens_differ(tokenizer, served, trained, where, fix)


def tokens_differ(
    tokenizer: Tokenizer, served: Sequence[int], trained: Sequence[int], where: str, fix: str
) -> RowError:
    """The error that shows the first token in which the ids of the prompt and those of training differ."""
    found, expected = first_difference(tokenizer, served, trained)
    return RowError(
        "this completion would be trained behind another prompt than the one in use",
        code=codes.PROMPT_DIFFERS,
        where=where,
        found=found,
        expected=f"{expected}, as in the prompt",
        fix=fix,
    )


def first_difference(tokenizer: Tokenizer, wanted: Sequence[int], found: Sequence[int]) -> tuple[str, str]:
    """Where ``found`` differs from ``wanted`` first, with the text before it, and what should be there."""
    shorter = min(len(wanted), len(found))
    at = next((i for i in range(shorter) if wanted[i] != found[i]), shorter)
    before = tokenizer.decode(wanted[max(0, at - _CONTEXT) : at], skip_special=False)
    here, there = (repr(tokenizer.decode(ids[at : at + 1], skip_special=False)) for ids in (found, wanted))
    behind = tokenizer.decode(found[at + 1 : at + 1 + _CONTEXT // 2], skip_special=False)
    return f"token {at}, behind {before!r}: {here}" + (f", before {behind!r}" if behind else ""), there
