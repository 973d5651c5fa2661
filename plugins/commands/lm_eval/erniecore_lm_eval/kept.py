"""Finished requests of an evaluation, in a file of JSON lines: what was killed continues where it was. A key says by content
what was computed: model, settings and token ids. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from erniecore.api import UsageError


class KeptResults:
    """Results by key. Without a file they are kept in memory.

    Args:
        file: appended to; lines that a kill has cut are ignored. model: what else a result depends on, e.g. the hash of the
            model and the versions of what computes.

    Raises:
        UsageError: the file cannot be read or written.
    """

    def __init__(self, file: Path | None, model: str) -> None:
        self._model, self._found = model, dict[str, Any]()
        self.reused = 0
        self._stream = None
        if file is None:
            return
        try:
            if file.exists():
                self._read(file)
            self._stream = file.open("ab")
            if self._stream.tell() and not file.read_bytes().endswith(b"\n"):
                self._stream.write(b"\n")
        except OSError as error:
            raise UsageError(
                "cannot keep finished requests",
                where=str(file),
                found=str(error.strerror),
                fix="name a file in an existing directory that you may write to (--out)",
            ) from error

    def _read(self, file: Path) -> None:
        for line in file.read_bytes().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:  # the line that was being written
                continue
            if isinstance(entry, dict) and isinstance(entry.get("key"), str) and "value" in entry:
                self._found[entry["key"]] = entry["value"]

    def key(self, *parts: Any) -> str:
        """The key of a computation; ``parts`` are JSON values."""
        return hashlib.sha256(json.dumps([self._model, *parts]).encode()).hexdigest()

    def get(self, key: str) -> Any:
        """What was computed, or None."""
        found = self._found.get(key)
        self.reused += found is not None
        return found

    def put(self, key: str, value: Any) -> None:
        """Keep a result; it is in the file when the call returns."""
        self._found[key] = value
        if self._stream is not None:
            self._stream.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
            self._stream.flush()

    def close(self) -> None:
        """No more results; the file stays."""
        if self._stream is not None:
            self._stream.close()
