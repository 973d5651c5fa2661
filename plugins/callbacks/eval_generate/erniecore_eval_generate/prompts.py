"""The rows of an evaluation: conversations whose last message, the assistant's, is the reference answer. No paddle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from erniecore.api import DataError, Json, RowError, counted
from erniecore.api.data import Conversation, Message, Origin
from erniecore.api.rows import DataSource, Source, parse, resolve

if TYPE_CHECKING:
    from erniecore_eval_generate.config import Config

_EXPECTED = "conversations that end with a user's message and an assistant's, the reference answer"


class Prompt(NamedTuple):
    """A row: what is completed, and the answer that it has."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    reference: str
    place: str


def read_prompts(settings: Any, config: Config) -> tuple[list[Prompt], str]:
    """The prompts in file order, and a sentence on the rows that are none (empty: there are none).

    Args:
        settings: of the run.
    Raises:
        DataError: a file that cannot be read, or no usable row.
    """
    sources = [Source(path=config.data)] if config.data else settings.data.eval
    found: list[Prompt] = []
    left_out: list[str] = []
    for source in resolve(sources, settings.data.format, settings.formats):
        for origin, row in _rows(source):
            if config.limit and len(found) == config.limit:
                break
            if isinstance(row, Prompt):
                found.append(row)
            else:
                left_out.append(f"{origin.place()}: {row.message}")
    if not found:
        where = ", ".join(source.path for source in sources)
        raise DataError("no row has a prompt and a reference", where=where, found=left_out[0], expected=_EXPECTED)
    if not left_out:
        return found, ""
    return found, f"{counted(len(left_out), 'row')} without a prompt and a reference left out, the first: {left_out[0]}"


def _rows(source: DataSource) -> Iterator[tuple[Origin, Prompt | RowError]]:
    for position, raw in source.parser.split(source.path):
        origin = Origin(source.file, position)
        try:
            yield origin, _prompt(parse(source, raw, origin), origin)
        except RowError as error:
            yield origin, error


def _prompt(record: object, origin: Origin) -> Prompt:
    if isinstance(record, Conversation) and len(record.messages) > 1 and record.messages[-1].role == "assistant":
        *asked, reference = record.messages
        return Prompt(tuple(asked), tuple(record.tools), reference.content, origin.place())
    raise RowError("the row has no prompt and reference", where="$", found=type(record).__name__, expected=_EXPECTED)
