"""The sections of the formats that have something to set."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field, Section


class TextConfig(Section):
    """Which field holds the text, and what a document is in text files."""

    field: str = Field("text", min_length=1, description="Field of JSON rows that holds the text.")
    document: Literal["line", "paragraph", "file"] = Field(
        "line",
        description="What one document of a .txt file is: a `line`, a `paragraph` (with blank lines between them), or "
        "the whole `file`. Blank ones are no rows.",
    )
