"""Formats with one thing wrong."""

from __future__ import annotations

from erniecore.api import Json, RowError, hookimpl
from erniecore.api.data import Conversation, Document, Message
from erniecore.api.method import Origin, Record
from erniecore.api.testing import NOWHERE
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyFormatPlugin


def parsed(row: Json, origin: Origin) -> Conversation:
    """What the good format makes of a row."""
    for key in ("ask", "answer"):
        if not isinstance(row.get(key), str) or not row[key]:
            raise RowError("must be a text", where=f"$.{key}")
    return Conversation((Message("user", row["ask"]), Message("assistant", row["answer"])), origin=origin)


class MatchesNothing(ToyFormatPlugin):
    """Does not know its own rows."""

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        return False


class MatchesEverything(ToyFormatPlugin):
    """Claims rows of others."""

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        return True


class MatchRaises(ToyFormatPlugin):
    """Measures values before it looks what they are."""

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        return "ask" in row and len(row["ask"]) >= 0


class NoOrigin(ToyFormatPlugin):
    """Records do not know where they come from."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        return parsed(row, NOWHERE)


class Consumes(ToyFormatPlugin):
    """Takes the answer out of the row."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        record = parsed(row, origin)
        if isinstance(row, dict):
            row["seen"] = True
        return record


class DropsQuestion(ToyFormatPlugin):
    """The question is cut to three characters."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        record = parsed(row, origin)
        short = Message("user", record.messages[0].content[:3] + record.messages[0].content[12:])
        return Conversation((short, record.messages[1]), origin=origin)


class JoinsEmptyTexts(ToyFormatPlugin):
    """Runs of blanks become one."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        record = parsed(row, origin)
        return Conversation(tuple(Message(m.role, " ".join(m.content.split())) for m in record.messages), origin=origin)


class BareError(ToyFormatPlugin):
    """Errors do not say where."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        try:
            return parsed(row, origin)
        except RowError as error:
            raise RowError(error.message) from None


class KeyErrors(ToyFormatPlugin):
    """A missing key is Python's own error."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        if not row:
            raise RowError("empty", where="$")
        return parsed({"ask": row["ask"], "answer": row["answer"]}, origin)


class AcceptsEmpty(ToyFormatPlugin):
    """An empty row is an empty conversation."""

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        return parsed(row, origin) if row else Conversation((Message("assistant", ""),), origin=origin)


class WritesQuestion(ToyFormatPlugin):
    """The answer is written as the question once more."""

    @hookimpl
    def ernie_write_record(self, record: Record) -> Json:
        row = super().ernie_write_record(record)
        return {**row, "answer": row["ask"]}


class WritesAnything(ToyFormatPlugin):
    """A document becomes a row without its text."""

    @hookimpl
    def ernie_write_record(self, record: Record) -> Json:
        return {"ask": "?", "answer": "?"} if isinstance(record, Document) else super().ernie_write_record(record)


MUTANTS = (
    mutant("format_matches_own_rows", MatchesNothing),
    mutant("format_refuses_foreign_rows", MatchesEverything),
    mutant("format_matching_never_raises", MatchRaises),
    mutant("format_parses_own_rows", NoOrigin),
    mutant("format_parsing_is_pure", Consumes),
    mutant("format_never_loses_text", DropsQuestion),
    mutant("format_keeps_text_verbatim", JoinsEmptyTexts),
    mutant("format_errors_have_paths", BareError),
    mutant("format_errors_have_paths", KeyErrors),
    mutant("format_refuses_empty_rows", AcceptsEmpty),
    mutant("format_writes_own_records", WritesQuestion),
    mutant("format_writes_own_records", WritesAnything),
)
