"""The format ``auto``: the one installed format that fits. The data pipeline decides once per file, and says so in the
report; the hooks here do the same for single rows."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from erniecore.errors import DataError, RowError
from erniecore.plugin import FormatPlugin, hookimpl
from erniecore.types.records import Json, Origin, Record

if TYPE_CHECKING:
    from erniecore.data.parsing import RowParser


class AutoFormat(FormatPlugin):
    """Chooses among the installed formats by the shape of the rows; never guesses between two."""

    name = "auto"
    summary = "The one installed format that fits the rows"

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        """Whether exactly one installed format fits."""
        from erniecore.data.parsing import matching

        return len(matching(row, {name: parser.plugin for name, parser in _parsers().items()})) == 1

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Record:
        """As that format does; raises ``RowError`` also when none or several fit."""
        from erniecore.data.parsing import choose

        parsers = _parsers()
        try:
            name = choose([row], {name: parser.plugin for name, parser in parsers.items()}, "$")
        except DataError as e:
            raise RowError(e.message, code=e.code, where="$", found=e.found, expected=e.expected, fix=e.fix) from e
        return parsers[name](row, origin)


@lru_cache(maxsize=1)
def _parsers() -> dict[str, RowParser]:
    """Parsers of the installed formats, which do not change while a process lives."""
    from erniecore.data.parsing import RowParser, installed_formats

    return {name: RowParser(plugin) for name, plugin in installed_formats().items()}


plugin = AutoFormat()
