r"""Conversations as one text, as Anthropic's HH-RLHF has them: ``\n\nHuman: …\n\nAssistant: …``. Texts are stripped."""

from __future__ import annotations

import re

from erniecore.api.data import Message
from erniecore_formats import checks

_TURN = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def is_transcript(value: object) -> bool:
    """Whether a text is such a conversation: it begins with a person's turn, and the assistant has one."""
    return isinstance(value, str) and value.lstrip().startswith("Human:") and "\n\nAssistant:" in value


def messages(text: str, where: str, *, open_end: bool = False) -> list[Message]:
    """Its turns.

    Args:
        open_end: the text is a prompt that ends with ``Assistant:``, which is no turn.

    Raises:
        RowError: a turn is blank.
    """
    _, *parts = _TURN.split(text)
    turns = list(zip(parts[::2], parts[1::2], strict=True))
    if open_end and turns[-1][0] == "Assistant" and not turns[-1][1].strip():
        turns.pop()
    return [Message(_ROLES[name], checks.text(said, where).strip()) for name, said in turns]  # type: ignore[arg-type]
