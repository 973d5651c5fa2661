"""Slash commands of ``ernie chat`` that change or keep the conversation: taking turns back, asking for another reply, choosing
between two, results of tools, options of sampling, and files. What they save are rows to train on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import ErnieError, RowError, UsageError, counted
from erniecore.api.command import did_you_mean, note, show_error
from erniecore.api.data import Conversation, Media, Message
from erniecore.api.rows import Source, decode_row, resolve

if TYPE_CHECKING:
    from erniecore_chat.chat_command import Talk

#: what /set changes; those of sampling, and the length of a reply
_LENGTH = "max_new_tokens"
_SETTABLE = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def undo(talk: Talk) -> None:
    """Take the last message of the user back, with everything behind it."""
    begin = _last_question(talk)
    if begin is None:
        return note("There is nothing to take back.")
    del talk.history[begin:]
    talk.former = ()
    note(f"Taken back; {counted(len(talk.history), 'message')} left.")


def retry(talk: Talk) -> None:
    """Reply to the last question again, by another random stream; the reply before it is kept for /prefer."""
    if not talk.history or talk.history[-1].role != "assistant":
        return note("There is no reply yet.")
    before = list(talk.history)
    former = talk.history.pop()
    if not talk.sampling.do_sample:
        note("note: decoding is greedy, so the reply will be the same; /set temperature 0.8 samples")
    if talk.reply():
        talk.former = (former,)
    else:  # it failed, or was stopped before it said anything
        talk.history[:] = before


def prefer(talk: Talk, rest: str) -> None:
    """Save the two replies to the last question as a preference; the better one stays in the conversation."""
    which, _, file = rest.partition(" ")
    if which not in ("new", "old") or not file.strip():
        return note("usage: /prefer new FILE, or /prefer old FILE")
    if not talk.former:
        return note("There is one reply only; /retry asks for another.")
    new, old = talk.history[-1], talk.former[0]
    chosen, rejected = (new, old) if which == "new" else (old, new)
    row: dict[str, Any] = {"messages": [plain(m) for m in talk.messages[:-1]]}
    row |= {"chosen": plain(chosen), "rejected": plain(rejected)}
    if _append(Path(file.strip()), {**row, **_beside(talk, talk.messages[:-1])}):
        talk.history[-1], talk.former = chosen, ()


def tool_result(talk: Talk, rest: str) -> None:
    """Give the result of a tool that the last reply called, and go on."""
    if not talk.history or not (talk.history[-1].tool_calls or talk.history[-1].role == "tool"):
        return note("The last reply calls no tool.")
    if not rest:
        return note("usage: /tool RESULT")
    calls = len(next(m for m in reversed(talk.history) if m.tool_calls).tool_calls)
    talk.history.append(Message("tool", rest))
    given = next(i for i, m in enumerate(reversed(talk.history)) if m.role != "tool")
    if given < calls:
        return note(f"{given} of {calls} results; /tool gives the next one.")
    talk.reply()


def set_option(talk: Talk, rest: str) -> None:
    """Show or change an option of sampling."""
    name, _, value = rest.partition(" ")
    name = name.lstrip("-").replace("-", "_")
    if not name:
        sampling = asdict(talk.sampling)
        told = {key: sampling[key] for key in ("do_sample", *_SETTABLE)}
        return note("  ".join(f"{key}={v}" for key, v in {**told, _LENGTH: talk.max_new_tokens or "auto"}.items()))
    try:
        _change(talk, name, value.strip())
    except (UsageError, ValueError) as error:
        note(f"/set {name}: {error}" if not isinstance(error, UsageError) else f"/set: {error}")


def _change(talk: Talk, name: str, value: str) -> None:
    if name == _LENGTH:
        if int(value) < 1:
            raise ValueError("a whole number above 0 is expected")
        talk.max_new_tokens = int(value)
        return
    if name not in _SETTABLE:
        raise UsageError("no such option", found=name, fix=did_you_mean(name, (*_SETTABLE, _LENGTH), "see /set"))
    number = int(value) if name in ("top_k", "seed") else float(value)
    changes: dict[str, Any] = {name: number}
    if name in ("temperature", "top_k", "top_p", "min_p"):
        changes["do_sample"] = changes.get("temperature", talk.sampling.temperature) != 0
    talk.sampling = replace(talk.sampling, **changes)
    talk.given.add(name)


def save(talk: Talk, rest: str) -> None:
    """Write the conversation as one row of the ``messages`` format."""
    if not rest or not talk.history:
        return note("usage: /save FILE" if not rest else "There is nothing to save.")
    row = {"messages": [plain(m) for m in talk.messages], **_beside(talk, talk.messages)}
    try:
        Path(rest).write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        return note(f"cannot write {rest}: {error.strerror}")
    note(f"saved {rest}")
    if empty := [str(i) for i, m in enumerate(talk.messages, 1) if not (m.content or m.tool_calls)]:
        note(f"note: empty: message {', '.join(empty)}; such a row is not trained on and not loaded again")


def load(talk: Talk, rest: str) -> None:
    """Continue the conversation in a row of a file, in any format of conversations."""
    if not rest:
        return note("usage: /load FILE [ROW]")
    file, _, number = rest.rpartition(" ")
    if not (file and number.isdigit()):
        file, number = rest, "1"
    try:
        record = _record(file, int(number))
    except (ErnieError, OSError) as error:
        return show_error(error) if isinstance(error, ErnieError) else note(f"cannot read {file}: {error.strerror}")
    messages = list(record.messages)
    talk.system = messages.pop(0).content if messages[0].role == "system" else ""
    talk.history[:], talk.tools, talk.former = messages, record.tools, ()
    note(f"Loaded {counted(len(messages), 'message')}.")


def _record(file: str, number: int) -> Conversation:
    """Row ``number`` of a file. Raises ``ErnieError``."""
    from erniecore.api.method import Origin

    [source] = resolve([Source(path=file)], "auto")
    for count, (position, raw) in enumerate(source.parser.split(source.path), 1):
        if count < number:
            continue
        row = raw if isinstance(raw, RowError) else decode_row(raw, position)
        if isinstance(row, RowError):
            raise row
        record = source.parser(row, Origin(source.file, position))
        if not isinstance(record, Conversation):
            raise UsageError("this row is no conversation", where=f"{file}:{number}", found=type(record).__name__)
        return record
    raise UsageError("the file has no such row", where=file, found=str(number))


def plain(message: Message) -> dict[str, Any]:
    """A message as the ``messages`` format writes it."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        row["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return row


def _beside(talk: Talk, messages: list[Message]) -> dict[str, Any]:
    """What a row has beside its messages: images, videos and tools."""
    found: dict[str, list[Any]] = {"images": [], "videos": [], "tools": list(talk.tools)}
    for media in (media for message in messages for media in message.media):
        frames = [_from_anywhere(media, frame) for frame in media.frames]
        found[f"{media.kind}s"].append(frames or _from_anywhere(media, media.source))
    return {name: value for name, value in found.items() if value}


def _from_anywhere(media: Media, source: str) -> str:
    """A source that does not depend on the directory of the row's file."""
    return source if source.startswith("data:") else str(Path(media.base, source))


def _append(path: Path, row: dict[str, Any]) -> bool:
    try:
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    except OSError as error:
        note(f"cannot write {path}: {error.strerror}")
        return False
    note(f"added a row to {path}")
    return True


def _last_question(talk: Talk) -> int | None:
    return next((i for i in range(len(talk.history) - 1, -1, -1) if talk.history[i].role == "user"), None)
