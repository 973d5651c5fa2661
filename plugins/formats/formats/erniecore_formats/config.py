"""The sections of the formats."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.data import FormatConfig

_COLUMNS = "Field of the format -> column of the file that holds it, where they differ; the format must then be named."


class AlpacaConfig(FormatConfig):
    """Names of the columns."""

    columns: dict[
        Literal["instruction", "input", "output", "chosen", "rejected", "history", "system", "label", "margin"], str
    ] = Field({}, description=_COLUMNS)


class ErniekitConfig(FormatConfig):
    """Names of the columns."""

    columns: dict[Literal["src", "tgt", "label", "system", "is_system", "response", "sort", "margin"], str] = Field(
        {}, description=_COLUMNS
    )


class MessagesConfig(FormatConfig):
    """Names of the columns."""

    columns: dict[Literal["messages", "chosen", "rejected", "tools", "system", "label", "margin"], str] = Field(
        {}, description=_COLUMNS
    )


class PreferenceConfig(FormatConfig):
    """Names of the columns."""

    columns: dict[
        Literal["prompt", "chosen", "rejected", "completion", "label", "margin", "system", "history", "tools"], str
    ] = Field({}, description=_COLUMNS)


class QueryResponseConfig(FormatConfig):
    """Names of the columns."""

    columns: dict[Literal["query", "response", "rejected_response", "history", "system", "label", "margin"], str] = (
        Field({}, description=_COLUMNS)
    )


class TextConfig(FormatConfig):
    """Which field holds the text, and what a document is in text files."""

    field: str = Field("text", min_length=1, description="Field of JSON rows that holds the text, or a list of them.")
    document: Literal["line", "paragraph", "file"] = Field(
        "line",
        description="What one document of a .txt file is: a `line`, a `paragraph` (with blank lines between them), or "
        "the whole `file`. Blank ones are no rows.",
    )

    def document_unit(self) -> Literal["line", "paragraph", "file"]:
        """The setting ``document``, for the reader."""
        return self.document
