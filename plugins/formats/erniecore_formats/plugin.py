"""The plugin objects of the three formats. They import nothing heavy; parsing lives in a module per format."""

from __future__ import annotations

from erniecore.api import Json, Origin, Plugin, Record, hookimpl
from erniecore_formats import alpaca as alpaca_rows
from erniecore_formats import erniekit as erniekit_rows
from erniecore_formats import messages as message_rows


class ErniekitFormat(Plugin):
    """``src``/``tgt`` rows and their preference variant."""

    kind, name = "format", "erniekit"
    summary = "ERNIEKit rows: src, tgt, label, system; response and sort for preferences"

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

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By its list of messages."""
        return message_rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """Conversation, preference or rated conversation."""
        return message_rows.parse(row, origin)


erniekit, alpaca, messages = ErniekitFormat(), AlpacaFormat(), MessagesFormat()
