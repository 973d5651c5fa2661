"""Settings files below the directories of runs and of commands: of ours, and of toolkits whose files are imported."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from erniecore.api import UsageError
from erniecore_webui.listing import Listing, scan
from erniecore_webui.model_dirs import ModelDirs

#: levels below a root; most entries; bytes of a file that are read to see what it is; characters of one
_DEPTH, _MOST, _HEAD, MOST = 3, 20_000, 1 << 14, 200_000
_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__", "ckpt", "logs", "control"})
#: a line of settings of ours, or of a toolkit whose files are imported
_SETTINGS = re.compile(r"^(?:model|method|data|train|extends|model_name_or_path)\s*:", re.MULTILINE)


def check_size(text: str) -> None:
    """Raises ``UsageError`` for settings that nobody writes."""
    if len(text) > MOST:
        raise UsageError("these settings are too long", found=f"{len(text)} characters", expected=f"at most {MOST}")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file: its place as a command is given it, and when it was changed."""

    place: str
    changed: float


class SettingsFiles(Listing[SettingsFile]):
    """Finds settings files below ``roots``: of ours, and of toolkits whose files are imported."""

    def __init__(self, roots: Sequence[Path], models: ModelDirs) -> None:
        super().__init__()
        self._roots, self._models = roots, models

    def look(self) -> Iterator[SettingsFile]:
        """Every one, some levels deep."""
        left = [_MOST]
        paths = {path: None for root in self._roots for path in _walk(str(root), _DEPTH, left)}
        for path in map(Path, paths):
            try:
                with path.open(encoding="utf-8") as file:
                    head = file.read(_HEAD)
                if _SETTINGS.search(head):
                    yield SettingsFile(self._models.place(path), path.stat().st_mtime)
            except (OSError, ValueError):
                continue

    def text(self, place: str) -> str:
        """The text of one. Raises ``UsageError`` where none was found."""
        if place not in self.found():
            self.forget()  # it may be new
        if place not in self.found():
            raise UsageError("there is no such settings file here", where=place, expected="one of the list")
        path = self._models.home / place
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError("the settings file cannot be read", where=place, found=str(error)) from error
        check_size(text)
        return text


def _walk(directory: str, depth: int, left: list[int]) -> Iterator[str]:
    folders, files = scan(directory, left, _SKIPPED)
    names = {entry.name for entry in files}
    # what a run or a model wrote is nobody's settings file
    if not names.intersection(("events.jsonl", "config.json")):
        yield from (e.path for e in files if e.name.endswith((".yaml", ".yml")) and e.is_file(follow_symlinks=False))
        for path in folders if depth > 1 else ():
            yield from _walk(path, depth - 1, left)
