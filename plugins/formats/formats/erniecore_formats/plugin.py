"""The plugin objects of the formats. They import nothing heavy; parsing and writing live in a module per format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from erniecore.api import Json, hookimpl
from erniecore.api.data import FormatPlugin, Origin, Record, RowReaderPlugin, messages_of
from erniecore_formats import advice, checks, columns
from erniecore_formats import alpaca as alpaca_rows
from erniecore_formats import erniekit as erniekit_rows
from erniecore_formats import messages as message_rows
from erniecore_formats import preference as preference_rows
from erniecore_formats import query_response as query_response_rows
from erniecore_formats import text as text_rows
from erniecore_formats.config import (
    AlpacaConfig,
    ErniekitConfig,
    MessagesConfig,
    PreferenceConfig,
    QueryResponseConfig,
    TextConfig,
)

if TYPE_CHECKING:
    from erniecore.api.rows import DataFile, RawRow


class AdvisedFormat(FormatPlugin):
    """A format that knows how near a row comes to it. ``shapes``: sets of fields that its rows have."""

    shapes: ClassVar[tuple[tuple[str, ...], ...]]

    def advice(self, row: Json) -> str:
        """Which fields to rename."""
        return advice.of_row(row, self.name, self.shapes)


class RowFormat(AdvisedFormat):
    """A format whose module ``rows`` has ``matches``, ``parse`` and ``write``, and whose columns may have other names."""

    rows: ClassVar[Any]

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By the row's own field names."""
        return bool(self.rows.matches(row))

    @hookimpl
    def ernie_parse_row(self, config: Any, row: Json, origin: Origin) -> Record:
        """The record that a row is."""
        record: Record = columns.parse(self.rows.parse, config.columns, row, origin)
        return record

    @hookimpl
    def ernie_write_record(self, config: Any, record: Record) -> Json:
        """The row that a record is."""
        if any(m.media for m in messages_of(record)) and self.rows not in (message_rows, preference_rows):
            raise checks.cannot_say("images")
        return columns.rename(self.rows.write(record), config.columns)


class ErniekitFormat(RowFormat):
    """``src``/``tgt`` rows and their preference variant."""

    name, Config = "erniekit", ErniekitConfig
    rows: ClassVar[Any] = erniekit_rows
    shapes = (("src", "tgt"), ("src", "response", "sort"))
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


class AlpacaFormat(RowFormat):
    """``instruction``/``input``/``output`` rows and their preference variant."""

    name, Config = "alpaca", AlpacaConfig
    rows: ClassVar[Any] = alpaca_rows
    shapes = (("instruction", "output"),)
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
        {"instruction": "Translate the text.", "context": "guten Tag", "response": "good day"},
    )


class MessagesFormat(RowFormat):
    """OpenAI and ShareGPT conversations, with tools, thinking, preferences and ratings."""

    name, Config = "messages", MessagesConfig
    rows: ClassVar[Any] = message_rows
    shapes = (("messages",),)
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


class QueryResponseFormat(RowFormat):
    """Rows with ``query`` and ``response``."""

    name, Config = "query-response", QueryResponseConfig
    rows: ClassVar[Any] = query_response_rows
    shapes = (("query", "response"),)
    summary = "Rows with query and response, history, system; rejected_response for preferences"
    examples: ClassVar[tuple[Json, ...]] = (
        {"query": "Say two words.", "response": "good day", "system": "You are a poet."},
        {
            "query": "And this one?",
            "response": "good night everybody",
            "history": [["Translate the text.", "good day everybody"]],
        },
        {"query": "Say two words.", "response": "good day", "rejected_response": "go away"},
        {"query": "Say two words.", "response": "go away", "label": False},
        {"prompt": "Say two words.", "response": "good day"},
    )


class PreferenceFormat(RowFormat):
    """``prompt``, ``chosen``, ``rejected``; ``completion`` and ``label``."""

    name, Config = "preference", PreferenceConfig
    rows: ClassVar[Any] = preference_rows
    shapes = (("prompt", "chosen", "rejected"), ("prompt", "completion"))
    summary = "Preference rows: prompt, chosen, rejected; or prompt, completion, label; texts or messages"
    examples: ClassVar[tuple[Json, ...]] = (
        {
            "input": {"messages": [{"role": "user", "content": "Say two words."}]},
            "preferred_output": [{"role": "assistant", "content": "good day"}],
            "non_preferred_output": [{"role": "assistant", "content": "go away"}],
        },
        {"prompt": "Say two words.", "chosen": "good day", "rejected": "go away", "margin": 1.5},
        {
            "chosen": [
                {"role": "user", "content": "Say two words."},
                {"role": "assistant", "content": "good day"},
            ],
            "rejected": [
                {"role": "user", "content": "Say two words."},
                {"role": "assistant", "content": "go away"},
            ],
            "score_chosen": 8.5,
            "score_rejected": 3,
        },
        {"prompt": "Say two words.", "completion": "go away", "label": False},
    )


class TextFormat(AdvisedFormat):
    """Documents: ``.txt`` files, and rows with a ``text``."""

    name = "text"
    shapes = (("text",),)
    summary = "Plain text: rows with a text, and .txt files by line, paragraph or file"
    Config = TextConfig
    examples: ClassVar[tuple[Json, ...]] = ({"text": "Once there was a mill by the river."},)

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """By the field ``text``, where no other format fits."""
        return text_rows.matches(row)

    @hookimpl
    def ernie_parse_row(self, config: TextConfig, row: Json, origin: Origin) -> Record:
        """One document per row."""
        return text_rows.parse(row, config.field, origin)

    @hookimpl
    def ernie_write_record(self, config: TextConfig, record: Record) -> Json:
        """The row of a document."""
        return text_rows.write(record, config.field)


class JsonArray(RowReaderPlugin):
    """An array of rows, or rows one after the other."""

    name, summary = "json", "A JSON array of rows"

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """Yields one row per array element."""
        from erniecore_formats.json_rows import read_json

        return read_json(file, array=True)


class JsonLines(RowReaderPlugin):
    """One row per line; also an array, or rows over several lines."""

    name, summary = "jsonl", "JSON Lines: a row per line"

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """Yields one row per line."""
        from erniecore_formats.json_rows import read_json

        return read_json(file, array=False)


class NewlineDelimitedJson(JsonLines):
    """JSON Lines by their other name."""

    name = "ndjson"


class TextReader(RowReaderPlugin):
    """Documents of plain text."""

    name = "txt"
    summary = "Plain text: a document per line, paragraph or file, as the format says"
    cuts_documents = True

    @hookimpl
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """As ``file.document`` cuts it."""
        from erniecore_formats.text_files import read_text

        return read_text(file)


erniekit, alpaca, messages = ErniekitFormat(), AlpacaFormat(), MessagesFormat()
preference, query_response, text = PreferenceFormat(), QueryResponseFormat(), TextFormat()
json, jsonl, ndjson, txt = JsonArray(), JsonLines(), NewlineDelimitedJson(), TextReader()
