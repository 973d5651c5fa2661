"""The plugin objects of the formats. They import nothing heavy; parsing lives in a module per format."""

from __future__ import annotations

from typing import ClassVar

from erniecore.api import Json, Origin, Plugin, Record, hookimpl
from erniecore_formats import alpaca as alpaca_rows
from erniecore_formats import erniekit as erniekit_rows
from erniecore_formats import messages as message_rows
from erniecore_formats import text as text_rows
from erniecore_formats.config import TextConfig


class ErniekitFormat(Plugin):
    """``src``/``tgt`` rows and their preference variant."""

    kind, name = "format", "erniekit"
    summary = "ERNIEKit rows: src, tgt, label, system; response and sort for preferences"
    examples: ClassVar[tuple[Json, ...]] = (
        {
            "src": ["How are you?", "And the weather?"],
            "tgt": ["Quite well, thanks.", "It is raining."],
            "label": [0, 1],
        },
        {"system": "You are a poet.", "src": "Say two words.", "tgt": "good day"},
        {"src": ["Say two words."], "tgt": [], "response": [["good day"], ["go away"]], "sort": [1, 0]},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By its field names."""
        return erniekit_rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """Conversation or preference."""
        return erniekit_rows.parse(row, origin)


class AlpacaFormat(Plugin):
    """``instruction``/``input``/``output`` rows and their preference variant."""

    kind, name = "format", "alpaca"
    summary = "Alpaca rows: instruction, input, output, system, history; chosen and rejected for preferences"
    examples: ClassVar[tuple[Json, ...]] = (
        {"instruction": "Translate the text.", "input": "guten Tag zusammen", "output": "good day everybody"},
        {
            "instruction": "And this one?",
            "output": "good night everybody",
            "system": "You are a translator.",
            "history": [["Translate the text.", "good day everybody"]],
        },
        {"instruction": "Say two words.", "chosen": "good day", "rejected": "go away"},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By its field names."""
        return alpaca_rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """Conversation or preference."""
        return alpaca_rows.parse(row, origin)


class MessagesFormat(Plugin):
    """OpenAI and ShareGPT conversations, with tools, thinking, preferences and ratings."""

    kind, name = "format", "messages"
    summary = "Chat rows: messages (role, content) or conversations (from, value), tools, thinking"
    examples: ClassVar[tuple[Json, ...]] = (
        {
            "messages": [
                {"role": "system", "content": "You are a poet."},
                {"role": "user", "content": "Say two words."},
                {"role": "assistant", "content": "good day"},
            ]
        },
        {"conversations": [{"from": "human", "value": "Say two words."}, {"from": "gpt", "value": "good day"}]},
    )

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By its list of messages."""
        return message_rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """Conversation, preference or rated conversation."""
        return message_rows.parse(row, origin)


class TextFormat(Plugin):
    """Documents: ``.txt`` files, and rows with a ``text``."""

    kind, name = "format", "text"
    summary = "Plain text: rows with a text, and .txt files by line, paragraph or file"
    Config = TextConfig
    examples: ClassVar[tuple[Json, ...]] = ({"text": "Once there was a mill by the river."},)

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By the field ``text``, where no other format fits."""
        return text_rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, config: TextConfig, row: Json, origin: Origin) -> Record:
        """Document."""
        return text_rows.parse(row, config.field, origin)


erniekit, alpaca, messages, text = ErniekitFormat(), AlpacaFormat(), MessagesFormat(), TextFormat()
