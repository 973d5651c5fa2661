"""What chat rows have beside their messages: answers to choose between, and the tools that were offered. Both ways.

Shared by ``messages`` and ``preference``. Single messages are read in ``turns.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

from erniecore.api import Json, RowError
from erniecore.api.data import Message
from erniecore.api.files import parse_json
from erniecore_formats import checks, transcripts, turns


def messages_in(value: object, where: str, expected: str, *, images: bool = False) -> list[Message]:
    """A text of the assistant, a message, or a list of messages; its order is not looked at. ``images``: as for
    ``turns.listed``."""
    if transcripts.is_transcript(value):
        return transcripts.messages(str(value), where)
    if isinstance(value, str):
        return [turns.message({"role": "assistant", "content": value}, where)]
    if isinstance(value, dict):
        return [turns.message(value, where, images=images)]
    return turns.listed(checks.filled(value, where, expected), where, images=images)


def answer(value: object, where: str) -> tuple[Message, ...]:
    """A continuation by the assistant: a text, a message, or messages."""
    return checked(messages_in(value, where, "a text, a message or a list of messages"), where)


def checked(listed: Sequence[Message], where: str) -> tuple[Message, ...]:
    """Messages that begin and end with the assistant. Raises ``RowError`` for any others."""
    messages = turns.merged(listed)
    if messages[0].role != "assistant" or messages[-1].role != "assistant":
        raise RowError(
            "an answer begins and ends with the assistant",
            code=checks.ROLE_ORDER,
            where=where,
            found=" → ".join(m.role for m in messages),
            expected="assistant",
        )
    return tuple(messages)


def tools(row: Json, within: str = "$") -> tuple[Json, ...]:
    """The offered tools: a list, or one as JSON text; each an object with a name. ``within``: JSON path of ``row``."""
    name = "functions" if "functions" in row and "tools" not in row else "tools"
    value, where = row.get(name), f"{within}.{name}"
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as e:
            raise checks.bad_value(f"the text is not JSON: {e}", where, value, "a list of tools") from e
    if not isinstance(value, list):
        raise checks.wrong_type(value, where, "a list of tools")
    for i, tool in enumerate(value):
        body = tool.get("function", tool) if isinstance(tool, dict) else tool
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise checks.bad_value("a tool needs a name", f"{where}[{i}]", tool, "an object with `name`")
    return tuple(value)


def written(messages: Sequence[Message]) -> list[Json]:
    """Messages as OpenAI has them; arguments of calls as JSON text, ``label: 0`` where a turn is not learned."""
    return [_message(m) for m in messages]


def _message(message: Message) -> Json:
    item: dict[str, object] = {"role": message.role, "content": message.content}
    if message.reasoning:
        item["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        item["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    if message.role == "assistant" and not message.learn:
        item["label"] = 0
    return item


def beside(tools: Sequence[Json], margin: float | None = None) -> dict[str, object]:
    """The fields of a row beside its messages, as far as there is something to say."""
    row: dict[str, object] = {"tools": list(tools)} if tools else {}
    return row if margin is None else {**row, "margin": margin}
