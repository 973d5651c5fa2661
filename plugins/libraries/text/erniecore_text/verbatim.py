"""What follows from a template that writes texts as they are and never looks at them (``verbatim_proof.py`` proves it).

For such a template, conversations of one shape (roles, and which texts are empty) differ in the texts alone: once one is
rendered, the others need no rendering. Where nothing is proven, every conversation is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from erniecore.api.data import Message
from erniecore.api.model import Segment


class Ask(NamedTuple):
    """What a rendering ends with: a generation prompt or not, and one for a completion with reasoning or not."""

    generation: bool = False
    thinking: bool | None = None

    def variables(self) -> dict[str, Any]:
        """As templates see it, by the names of the published ones."""
        if self.thinking is None:
            return {"add_generation_prompt": self.generation}
        mode = {"thinking_mode": "open" if self.thinking else "close"}
        return {"add_generation_prompt": self.generation, "enable_thinking": self.thinking, "options": mode}


#: no generation prompt
SILENT = Ask()


class Shape(NamedTuple):
    """A conversation without its texts: (role, has content, has reasoning) of each message."""

    messages: tuple[tuple[str, bool, bool], ...]
    ask: Ask


class TextSlot(NamedTuple):
    """Where a text of a message belongs in a rendering."""

    message: int
    reasoning: bool
    generated: bool


#: The rendering of a shape: what the template wrote, and holes for texts.
RenderPlan = tuple[Segment | TextSlot, ...]


def shape_of(messages: Sequence[Message], ask: Ask) -> Shape | None:
    """``None`` where there are tool calls: each of them has a shape of its own."""
    if any(m.tool_calls for m in messages):
        return None
    return Shape(tuple([(m.role, m.content != "", m.reasoning != "") for m in messages]), ask)


def probe(shape: Shape, token: str) -> list[Message]:
    """A conversation of that shape whose texts are all different and hold ``token``."""
    return [
        Message(role, f"c{token}{i}" if content else "", f"r{token}{i}" if reasoning else "")  # type: ignore[arg-type]
        for i, (role, content, reasoning) in enumerate(shape.messages)
    ]


def plan_of(segments: Sequence[Segment], messages: Sequence[Message]) -> RenderPlan:
    """``segments`` of a :func:`probe` with holes for its texts."""
    return tuple(
        s if s.trusted else TextSlot(s.message, s.text != messages[s.message].content, s.generated) for s in segments
    )


def filled(plan: RenderPlan, messages: Sequence[Message]) -> list[Segment]:
    """The segments of ``messages``."""
    return [
        Segment(
            messages[part[0]].reasoning if part[1] else messages[part[0]].content, False, part[0], generated=part[2]
        )
        if isinstance(part, TextSlot)
        else part
        for part in plan
    ]


def text_of(plan: RenderPlan, messages: Sequence[Message]) -> str:
    """The rendering of ``messages``."""
    return "".join(
        [
            (messages[part[0]].reasoning if part[1] else messages[part[0]].content)
            if isinstance(part, TextSlot)
            else part.text
            for part in plan
        ]
    )
