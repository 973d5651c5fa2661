"""All records of some files at once, for commands that look at each row. Not for training, which streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from erniecore.data.checking import records
from erniecore.data.ledger import Ledger
from erniecore.types import Record


def read_records(files: Sequence[Path], format: str = "auto") -> tuple[list[Record], list[dict[str, Any]]]:
    """The records of the files in order, each with its origin, and what is wrong with the other rows
    (``file``, ``line``, ``message`` …)."""
    ledger = Ledger()
    found = [record for _, record in records(files, format, ledger)]
    return found, [dict(error) for error in ledger.errors]
