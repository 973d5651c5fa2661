"""Rows for preference learning as TRL has them: ``prompt``, ``chosen``, ``rejected``, or ``completion`` and ``label``.

Each is a text or a list of messages. Without a ``prompt`` both answers are whole conversations, and what they share is
the prompt; they may also be transcripts (``transcripts.py``). OpenAI's rows are read too. ``margin``, or two scores, says how
much better the chosen answer is. Images belong to the prompt: parts of its questions, or ``images`` with markers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from erniecore.api import Json
from erniecore.api.data import Conversation, Message, Origin, Preference, Record, UnpairedPreference
from erniecore_formats import answers, checks, media, openai_preference, pairs, transcripts, turns

_EXPECTED = "a text, a message or a list of messages"
_OTHERS = ("instruction", "question", "src", "conversations", "conversation", "query")


def matches(row: Json) -> bool:
    """Whether a row has this shape and not that of another format."""
    if any(name in row for name in _OTHERS):
        return False
    if "prompt" in row:
        return ("chosen" in row and "rejected" in row) or "completion" in row
    if "messages" in row:
        return False
    sides = [row.get("chosen"), row.get("rejected")]
    whole = all(isinstance(s, list) for s in sides) or all(transcripts.is_transcript(s) for s in sides)
    return whole or openai_preference.matches(row)


def parse(row: Json, origin: Origin) -> Conversation | Preference | UnpairedPreference:
    """One row as a preference, or as a conversation or a rated one when it has a ``completion``."""
    checks.no_media(row, but=("images", "videos"))
    if openai_preference.CHOSEN in row and "chosen" not in row:
        return openai_preference.parse(row, origin)
    if "completion" in row and "chosen" not in row:
        return _completed(row, origin)
    for name in ("chosen", "rejected"):
        if name not in row:
            raise checks.missing(row, name)
    said = {name: row[name] for name in ("chosen", "rejected")}
    if transcripts.is_transcript(row.get("prompt")):  # what follows ``Assistant:``
        said = {name: text.strip() if isinstance(text, str) else text for name, text in said.items()}
    chosen, rejected = (answers.messages_in(text, f"$.{name}", _EXPECTED, images=True) for name, text in said.items())
    if chosen[0].role == "assistant":
        prompt = _prompt(row)
    else:
        prompt = _shared(chosen, rejected)
        _check_prompt(row, prompt)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    media.refuse([*chosen, *rejected])
    prompt = media.marked(row, prompt, origin)
    better, worse = answers.checked(chosen, "$.chosen"), answers.checked(rejected, "$.rejected")
    margin, tools = checks.margin(row), answers.tools(row)
    return Preference(tuple(turns.merged(prompt)), better, worse, margin=margin, tools=tools, origin=origin)


def write(record: Record) -> Json:
    """The row for a record, all texts as messages; raises ``RowError`` for documents."""
    if isinstance(record, Preference):
        sides = {"prompt": record.prompt, "chosen": record.chosen, "rejected": record.rejected}
        row = {name: answers.written(messages) for name, messages in sides.items()}
        return {**row, **media.sources(record.prompt), **answers.beside(record.tools, record.margin)}
    if not isinstance(record, Conversation | UnpairedPreference):
        raise checks.cannot_say(f"a {type(record).__name__.lower()}")
    cut = {"prompt": answers.written(record.messages[:-1]), "completion": answers.written(record.messages[-1:])}
    rated = {"label": record.desirable} if isinstance(record, UnpairedPreference) else {}
    return {**cut, **rated, **media.sources(record.messages), **answers.beside(record.tools)}


def _completed(row: Json, origin: Origin) -> Conversation | UnpairedPreference:
    prompt = media.marked(row, _prompt(row), origin)
    messages = (*turns.merged(prompt), *answers.answer(row["completion"], "$.completion"))
    rating, tools = checks.rating(row), answers.tools(row)
    if rating is None:
        return Conversation(messages, tools=tools, origin=origin)
    return UnpairedPreference(messages, rating, tools=tools, origin=origin)


def _prompt(row: Json) -> list[Message]:
    """The messages of ``prompt``, behind ``system``; a text is one question."""
    if "prompt" not in row:
        raise checks.missing(row, "prompt")
    value = row["prompt"]
    if transcripts.is_transcript(value):
        listed = transcripts.messages(value, "$.prompt", open_end=True)
        turns.check_order(listed, "$.prompt", last="user")
        return listed
    if isinstance(value, str):
        return pairs.prompt(row, checks.text(value, "$.prompt"))
    items = checks.filled(value, "$.prompt", "a text or a list of messages")
    listed = turns.listed(items, "$.prompt", images=True)
    before = turns.system_beside(row, listed[0])
    turns.check_order(listed, "$.prompt", last="user", before="system" if before else "")
    return before + listed


def _shared(chosen: list[Message], rejected: list[Message]) -> list[Message]:
    """The messages that both conversations begin with, as far as what follows is the assistant's in both."""
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*map(_unplaced, (chosen, rejected)), strict=False))
    )
    for cut in range(same, 0, -1):
        if all(len(side) > cut and side[cut].role == "assistant" for side in (chosen, rejected)):
            prompt = chosen[:cut]
            turns.check_order(prompt, "$.chosen", last="user")
            return prompt
    raise checks.bad_value(
        "the two conversations do not begin alike",
        "$.rejected",
        rejected[0].content,
        "the same messages up to the assistant's answer",
        "give the prompt in `prompt`, and only the answers in chosen and rejected",
    )


def _unplaced(messages: list[Message]) -> list[Message]:
    """Without where their images stand in the row."""
    return [replace(m, media=tuple(replace(one, where="") for one in m.media)) if m.media else m for m in messages]


def _check_prompt(row: Json, shared: list[Message]) -> None:
    """A prompt that stands beside whole conversations must be the one that they share."""
    given = row.get("prompt")
    if given is None:
        return
    if isinstance(given, str):
        fits = any(m.role == "user" and m.content == given for m in shared)
    else:
        fits = _unplaced(_prompt(row)) == _unplaced(shared)
    if not fits:
        expected = "the question in chosen and rejected"
        raise checks.bad_value("the prompt is not the one of the conversations", "$.prompt", given, expected)
