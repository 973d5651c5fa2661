"""Rows with a question and an answer."""

from erniecore.api import hookimpl
from erniecore.api.data import Conversation, FormatPlugin, Json, Message, Origin


class Questions(FormatPlugin):
    """``{"q": ..., "a": ...}``."""

    name, summary = "questions", "rows with `q` and `a`"
    examples = ({"q": "1 plus 1", "a": "2"},)

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        return "q" in row and "a" in row

    @hookimpl
    def ernie_parse_row(self, row: Json, origin: Origin) -> Conversation:
        return Conversation((Message("user", row["q"]), Message("assistant", row["a"])), origin=origin)


plugin = Questions()
