"""Hooks of formats. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.records import Json, Origin, Record


class FormatHooks:
    """Called on one format plugin per data source."""

    @hookspec(firstresult=True)
    def ernie_match_row(self, row: Json) -> bool:
        """Whether a parsed JSON row has this format's shape; used by ``auto`` and by error messages. Pure, cheap.

        Example::

            @hookimpl
            def ernie_match_row(self, row):
                return "src" in row and "tgt" in row
        """

    @hookspec(firstresult=True)
    def ernie_parse_row(self, config: Section, row: Json, origin: Origin) -> Record:
        """One row as a record; raises ``RowError`` whose ``where`` is the JSON path. Called once per row.

        Example::

            @hookimpl
            def ernie_parse_row(self, row, origin):
                return Document(text=row["text"], origin=origin)
        """

    @hookspec(firstresult=True)
    def ernie_write_record(self, config: Section, record: Record) -> Json:
        """A record as one row, the way back of ``ernie_parse_row``, for ``ernie data convert``; raises ``RowError`` where
        the format cannot represent it. Called once per record. Optional: without it nothing is converted to this format.

        Example::

            @hookimpl
            def ernie_write_record(self, record):
                return {"text": record.text}
        """
