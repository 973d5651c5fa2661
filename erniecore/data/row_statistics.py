"""What became of every row: rows in = kept + truncated + dropped, per file, with the first errors in full.

Written to ``data_report.json`` and printed by ``ernie data check``. It counts; it does not decide what is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from erniecore_system.units import counted, printable

from erniecore import codes
from erniecore.errors import DataError
from erniecore.types.records import Origin

MAX_ERRORS = 20
#: reasons that only a method has; rows are right without it
_OF_METHOD = ("ERN-D04", codes.NO_QUESTION, codes.NO_REFERENCE)


@dataclass
class FileStatistics:
    """Of one file. ``rows`` is counted where rows are read, the rest where their fate is known. ``document``: what became a
    row of a text file."""

    rows: int = 0
    kept: int = 0
    truncated: int = 0
    dropped: int = 0
    samples: int = 0
    format: str = ""
    document: str = ""
    reasons: Counter[str] = field(default_factory=Counter)

    def described(self) -> str:
        """How the rows were read: ``messages``, ``text, a document per line``; empty without a format."""
        return f"{self.format}, a document per {self.document}" if self.document else self.format

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {
            "rows": self.rows,
            "kept": self.kept,
            "truncated": self.truncated,
            "dropped": self.dropped,
            "samples": self.samples,
            "format": self.format,
            **({"document": self.document} if self.document else {}),
            "reasons": dict(sorted(self.reasons.items())),
        }


class RowStatistics:
    """Collects the fate of rows; statistics of parts of the work are merged in order.

    Args:
        max_errors: how many errors are kept in full; the rest is counted by code.
    """

    def __init__(self, max_errors: int = MAX_ERRORS) -> None:
        self.max_errors = max_errors
        self.files: dict[str, FileStatistics] = {}
        self.errors: list[dict[str, Any]] = []
        self.notes: list[str] = []
        #: places of rows that are kept but lose something, the first of them
        self.losses: list[dict[str, Any]] = []
        #: errors of files as a whole, in order
        self.failures: list[DataError] = []

    def file(self, name: str) -> FileStatistics:
        """The counts of one file."""
        if name not in self.files:
            self.files[name] = FileStatistics()
        return self.files[name]

    def read(self, file: str, count: int = 1) -> None:
        """Count ``count`` rows as read."""
        self.file(file).rows += count

    def keep(self, file: str, samples: int = 1, truncated: str = "") -> None:
        """A row became samples; ``truncated`` says why it was shortened, if it was."""
        count = self.file(file)
        count.samples += samples
        if truncated:
            count.truncated += 1
            count.reasons[truncated] += 1
        else:
            count.kept += 1

    def drop(self, origin: Origin, error: DataError) -> None:
        """A row cannot be used."""
        count = self.file(origin.file)
        count.dropped += 1
        count.reasons[error.code] += 1
        self._list(origin, error)

    def lose(self, origin: Origin, what: Sequence[str]) -> None:
        """List a row that ``keep`` counted as truncated, with what it loses."""
        if len(self.losses) < self.max_errors:
            place = {"file": origin.file, "line": origin.line, "place": origin.place()}
            self.losses.append({**place, "loses": list(what)})

    def fail(self, file: str, error: DataError) -> None:
        """A file cannot be used, or not to its end."""
        self.file(file)
        self.failures.append(error)
        where = error.where.rpartition(":")
        self._list(Origin(file, int(where[2]) if where[0] == file and where[2].isdigit() else 0), error)

    def _list(self, origin: Origin, error: DataError) -> None:
        if len(self.errors) >= self.max_errors:
            return
        path = error.where if error.where.startswith("$") else ""
        if origin.element is not None:
            path = f"$[{origin.element}]{path[1:]}"
        entry = {"file": origin.file, "line": origin.line, "path": path, "code": error.code, "message": error.message}
        extra = {n: v for n in ("found", "expected", "fix") if (v := getattr(error, n))}
        self.errors.append(entry | extra)

    def merge(self, others: Iterable[RowStatistics]) -> None:
        """Add the counts of later parts."""
        for other in others:
            for name, count in other.files.items():
                mine = self.file(name)
                for part in ("rows", "kept", "truncated", "dropped", "samples"):
                    setattr(mine, part, getattr(mine, part) + getattr(count, part))
                mine.format, mine.document = mine.format or count.format, mine.document or count.document
                mine.reasons.update(count.reasons)
            self.errors = (self.errors + other.errors)[: self.max_errors]
            self.notes += [n for n in other.notes if n not in self.notes]
            self.failures += other.failures

    def total(self, part: str) -> int:
        """Sum of ``rows``, ``kept``, ``truncated``, ``dropped`` or ``samples`` over files."""
        return sum(getattr(count, part) for count in self.files.values())

    def check(self, max_drop: float, command: str = "") -> None:
        """Raise the first file's error, or ``DataError`` when too much was dropped or nothing is left.

        Args:
            command: that finds the same errors again; by default one that looks at the files alone.
        """
        if self.failures:
            raise self.failures[0]
        rows, dropped = self.total("rows"), self.total("dropped")
        too_long = 2 * self._reasons()[codes.TOO_LONG] > dropped
        listed = [e for e in self.errors if not too_long or e["code"] == codes.TOO_LONG] or self.errors
        first = listed[0] if listed else None
        lengthen = f"{first['fix']}, or " if too_long and first and "fix" in first else ""
        example = f"; the first: {describe(first)}" if first else ""
        files = " ".join(self.files)
        of_method = first is not None and first["code"].startswith(_OF_METHOD)
        if not command and not of_method:  # without the method a check would find nothing
            command = f"ernie data check {files}"
        if dropped == rows:
            told = of_method or (first is not None and first["code"] == codes.BAD_VALUE and "fix" in first)
            raise DataError(
                "no row is left to learn from",
                code=codes.NOTHING_LEFT,
                where=files,
                found=f"{dropped} of {counted(rows, 'row')} dropped{example}",
                fix="" if told else "repair the rows, or name their format with --format",
                next=command,
            )
        if dropped > max_drop * rows:
            raise DataError(
                "too many rows are dropped",
                code=codes.TOO_MANY_DROPPED,
                where=files,
                found=f"{dropped} of {counted(rows, 'row')} ({dropped / rows:.2%}){example}",
                expected=f"at most {max_drop:.2%} (data.max_drop)",
                fix=f"{lengthen or 'repair the rows, or '}raise data.max_drop",
                next=command,
            )

    def _reasons(self) -> Counter[str]:
        return sum((count.reasons for count in self.files.values()), Counter())

    def as_dict(self) -> dict[str, Any]:
        """JSON form: totals, reasons, files, the first errors."""
        parts = ("rows", "kept", "truncated", "dropped", "samples")
        return {
            **{part: self.total(part) for part in parts},
            "reasons": dict(sorted(self._reasons().items())),
            "errors": self.errors,
            "errors_not_listed": self.total("dropped") + len(self.failures) - len(self.errors),
            "files": {name: count.as_dict() for name, count in self.files.items()},
            "notes": self.notes,
        }

    def summary(self) -> str:
        """All counts in one line, for the console."""
        parts = ("rows", "kept", "truncated", "dropped")
        rows, kept, truncated, dropped = (self.total(part) for part in parts)
        share = f" ({dropped / rows:.2%})" if dropped else ""
        return f"{counted(rows, 'row')} = {kept} kept + {truncated} truncated + {dropped} dropped{share}"


def describe(error: dict[str, Any]) -> str:
    """One listed error on one line."""
    place = f"{error['file']}:{error['line']}" if error["line"] else error["file"]
    path = f" {error['path'].removeprefix('$') if error['path'].startswith('$[') else error['path']}"
    path = path if path not in (" ", " $") else ""
    found = f" (got {error['found']})" if "found" in error else ""
    wanted = f"; expected {error['expected']}" if "expected" in error else ""
    fix = f"; {error['fix']}" if "fix" in error else ""
    return printable(f"{place}{path}: {error['code']} {error['message']}{found}{wanted}{fix}")
