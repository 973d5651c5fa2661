"""ERNIEKit's own rows: ``src`` and ``tgt`` turn by turn, and the preference rows with ``response`` and ``sort``.

Texts are stripped at both ends, as the format defines. Other fields are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from erniecore.api import Json, counted
from erniecore.api.data import Conversation, Message, Origin, Preference, Record
from erniecore_formats import checks, erniekit_images


def matches(row: Json) -> bool:
    """Whether a row has this shape."""
    return ("src" in row and ("tgt" in row or "response" in row)) or erniekit_images.matches(row)


def parse(row: Json, origin: Origin) -> Conversation | Preference:
    """One row as a conversation, or as a preference when it has ``response``."""
    if erniekit_images.matches(row):
        return erniekit_images.parse(row, origin)
    for name in ("src",) if "response" in row else ("src", "tgt"):
        if name not in row:
            raise checks.missing(row, name)
    return _preference(row, origin) if "response" in row else _conversation(row, origin)


def _conversation(row: Json, origin: Origin) -> Conversation:
    sources, targets = _sources(row), _targets(row)
    if len(sources) != len(targets):
        raise checks.lengths_differ("$.tgt", counted(len(targets), "answer"), f"{len(sources)}, as many as in $.src")
    labels = checks.flags(row["label"], "$.label", len(sources), "turns") if "label" in row else [True] * len(sources)
    system, first = _system(row, sources)
    if first == len(sources):
        raise checks.bad_value("only the system text is left", "$.src", row["src"], "a turn behind the system text")
    messages = _turns(system, sources[first:], targets[first:], labels[first:])
    return Conversation(tuple(messages), origin=origin)


def _preference(row: Json, origin: Origin) -> Preference:
    sources, targets = _sources(row), _targets(row)
    if len(sources) != len(targets) + 1:
        raise checks.lengths_differ(
            "$.tgt",
            counted(len(targets), "answer"),
            f"{len(sources) - 1}: one less than in $.src, the last question is open",
        )
    system, first = _system(row, sources)
    if first == len(sources):
        raise checks.bad_value("only the system text is left", "$.src", row["src"], "a turn behind the system text")
    prompt = _turns(system, sources[first:], targets[first:], [False] * (len(targets) - first))
    answers = _answers(row)
    better = 0 if _order(row)[0] > _order(row)[1] else 1
    return Preference(tuple(prompt), answers[better], answers[1 - better], margin=checks.margin(row), origin=origin)


def write(record: Record) -> Json:
    """The row for a record; raises ``RowError`` if this format cannot represent it. Its texts are those of the record,
    but whoever reads them strips them."""
    if isinstance(record, Preference):
        checks.sayable(not record.tools, "tools")
        row, sources, targets, _ = _written(record.prompt)
        sides = [[_text(m) for m in side] for side in (record.chosen, record.rejected)]
        row |= {"src": sources, "tgt": targets, "response": sides, "sort": [1, 0]}
        return row if record.margin is None else {**row, "margin": record.margin}
    if not isinstance(record, Conversation):
        raise checks.cannot_say(f"a {type(record).__name__.lower()}")
    checks.sayable(not record.tools, "tools")
    row, sources, targets, labels = _written(record.messages)
    row |= {"src": sources, "tgt": targets}
    return row if all(labels) else {**row, "label": labels}


def _written(messages: Sequence[Message]) -> tuple[dict[str, object], list[str], list[str], list[int]]:
    """The system text's field, the questions, the answers, and which of them are learned."""
    listed = list(messages)
    row: dict[str, object] = {}
    if listed and listed[0].role == "system":
        row["system"] = listed.pop(0).content
    roles = [m.role for m in listed]
    checks.sayable(roles == [("user", "assistant")[i % 2] for i in range(len(roles))], "turns of " + ", ".join(roles))
    answers = listed[1::2]
    return row, [m.content for m in listed[::2]], [_text(m) for m in answers], [int(m.learn) for m in answers]


def _text(message: Message) -> str:
    checks.sayable(not message.tool_calls, "function calls")
    checks.sayable(message.role in ("user", "assistant"), f"a message of {message.role}")
    return message.content


def _sources(row: Json) -> list[str]:
    value = row["src"]
    return checks.texts(
        value if isinstance(value, str) else checks.filled(value, "$.src", "a text or a list of texts"), "$.src"
    )


def _targets(row: Json) -> list[str]:
    """The answers; the first may be empty if it is not given."""
    value = row.get("tgt", [])
    if checks.flag(row.get("is_system", 0), "$.is_system") and isinstance(value, list) and _empty(value[:1]):
        return ["", *(checks.text(item, f"$.tgt[{i}]").strip() for i, item in enumerate(value) if i)]
    return checks.texts(value, "$.tgt")


def _empty(items: Sequence[object]) -> bool:
    return any(isinstance(item, str) and not item.strip() for item in items)


def _system(row: Json, sources: list[str]) -> tuple[str, int]:
    """The system text and the number of the first turn that is one."""
    system = row.get("system")
    text = checks.text(system, "$.system", allow_empty=True).strip() if system is not None else ""
    if not checks.flag(row.get("is_system", 0), "$.is_system"):
        return text, 0
    if text:
        raise checks.bad_value("there are two system texts", "$.system", text, "`system` or `is_system`, not both")
    return sources[0], 1


def _turns(system: str, sources: list[str], targets: list[str], labels: list[bool]) -> list[Message]:
    messages = [Message("system", system)] if system else []
    for i, source in enumerate(sources):
        messages.append(Message("user", source))
        if i < len(targets):
            messages.append(Message("assistant", targets[i], learn=labels[i]))
    return messages


def _order(row: Json) -> tuple[float, float]:
    if "sort" not in row:
        raise checks.missing(row, "sort")
    value = row["sort"]
    if not isinstance(value, list) or len(value) != 2:
        raise checks.bad_value("`sort` ranks two answers", "$.sort", value, "two numbers, such as [1, 0]")
    first, second = (checks.number(v, f"$.sort[{i}]") for i, v in enumerate(value))
    if first == second:
        raise checks.bad_value("neither answer is better", "$.sort", value, "two different numbers, such as [1, 0]")
    return first, second


def _answers(row: Json) -> list[tuple[Message, ...]]:
    value = row["response"]
    if not isinstance(value, list) or len(value) != 2:
        raise checks.bad_value("`response` holds two answers", "$.response", value, "a list of two")
    return [_answer(v, f"$.response[{i}]") for i, v in enumerate(value)]


def _answer(value: object, where: str) -> tuple[Message, ...]:
    """One text, or assistant, user, assistant, … for a preference between whole sessions."""
    turns = checks.texts(value, where)
    if len(turns) % 2 == 0:
        raise checks.lengths_differ(where, counted(len(turns), "text"), "an odd number: answer, question, answer, …")
    return tuple(Message("user" if i % 2 else "assistant", turn) for i, turn in enumerate(turns))
