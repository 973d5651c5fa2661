"""What a run reads beside its settings and rows, by content: hashes of the files of models and tokenizers, and how two sets of
them differ. Hashes are remembered: a file is read again only where something has happened to it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from erniecore_system.hashing import stream_hash

#: part -> name -> sha256 of the file, or version of the distribution
Fingerprint = dict[str, dict[str, str]]
_MODEL = ("config.json", "*.safetensors", "*.safetensors.index.json", "adapter_config.json", "lora_config.json")
_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*preprocessor_config.json",
)
_TEMPLATE = ("chat_template.*",)
#: of a directory with another model, or of a run that made it
_ALL = tuple(f"{place}{name}" for place in ("", "model/", "adapter/") for name in (*_MODEL, *_TEMPLATE, *_TOKENIZER))
#: files of a tree, as a checkpoint has directories below its own; those that say nothing of a model
_LEVELS, _PAGES = ("*", "*/*", "*/*/*"), (".md", ".html", ".png")
#: smaller files are always read
_SMALL = 1 << 20
#: files that are remembered, the last ones that were asked for; bytes of the cache at most
_MOST, _LARGEST = 2000, 1 << 22
#: seconds since its last change after which a file counts as written: file systems have coarse clocks
_SETTLED = 2.0


class FileHashes:
    """sha256 of files. What was remembered in ``cache`` is read at the start of the block and written at its end, if there is
    more; a cache that cannot be read or written costs time only.
    """

    def __init__(self, cache: Path) -> None:
        self._path, self._known, self._more = cache, dict[str, Any](), False

    def __enter__(self) -> FileHashes:
        with suppress(OSError, ValueError, RecursionError):
            found = json.loads(self._path.read_bytes() if self._path.stat().st_size < _LARGEST else b"{}")
            self._known = found if isinstance(found, dict) else {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._more:
            kept = dict(list(self._known.items())[-_MOST:])
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_text(json.dumps(kept), encoding="utf-8")
                os.replace(temporary, self._path)

    def of(self, directory: str, patterns: Sequence[str]) -> dict[str, str]:
        """Name -> sha256 of the files in ``directory`` that match a pattern, or a pattern behind ``folder/``."""
        found: dict[str, str] = {}
        for folder in dict.fromkeys(pattern.rpartition("/")[0] for pattern in patterns) if directory else ():
            wanted = [p.rpartition("/")[2] for p in patterns if p.rpartition("/")[0] == folder]
            place = Path(directory, folder)
            for path in sorted(place.iterdir()) if place.is_dir() else ():
                if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in wanted) and path.is_file():
                    found[os.path.join(folder, path.name)] = self._hash(path)
        return found

    def of_file(self, path: str) -> dict[str, str]:
        """The same for one file; nothing where there is none of this name."""
        return {path: self._hash(Path(path))} if path and os.path.isfile(path) else {}

    def _hash(self, path: Path) -> str:
        try:
            stat = path.stat()
            state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
            key = str(path.resolve())
            entry = self._known.pop(key, None)
            if isinstance(entry, list) and entry[:-1] == state and isinstance(entry[-1], str):
                self._known[key] = entry
                return entry[-1]
            value = _sha256(path)
        except OSError as error:  # whoever opens it says so
            return f"unreadable: {error.strerror}"
        if stat.st_size >= _SMALL and time.time() - max(stat.st_mtime, stat.st_ctime) > _SETTLED:
            self._known[key], self._more = [*state, value], True
        return value


def begin(
    cache: Path, model: str, text: str, template: str, others: Mapping[str, Sequence[str]], versions: Mapping[str, str]
) -> Future[Fingerprint]:
    """The fingerprint of a run, from a thread of its own; parts without files are left out.

    Args:
        cache: where hashes are remembered. model, text: directories of the base and of its tokenizer; empty: none.
        template: a file, or nothing that is hashed. others: part -> directories of further models.
        versions: of distributions.
    """
    made: Future[Fingerprint] = Future()

    def work() -> None:
        try:
            with FileHashes(cache) as hashes:
                found = {"base": hashes.of(model, _MODEL), "tokenizer": hashes.of(text, _TOKENIZER)}
                found["template"] = hashes.of(text, _TEMPLATE) | hashes.of_file(template)
                for part, paths in others.items():
                    several = [(path, hashes.of(path, _ALL)) for path in paths if path]
                    found[part] = {f"{path}/{name}": value for path, files in several for name, value in files.items()}
            found["plugins"] = dict(versions)
            made.set_result({part: entries for part, entries in found.items() if entries})
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=work, name="fingerprint", daemon=True).start()
    return made


def model_digest(cache: Path, directory: Path) -> str:
    """One hash of the model in ``directory``, as :func:`digests` has it under ``base``."""
    with FileHashes(cache) as hashes:
        return _digest(hashes.of(str(directory), _MODEL))


def tree_digest(cache: Path, directories: Sequence[Path | None]) -> str:
    """One hash over numbers, names and contents of all files in ``directories``, two levels deep; pages and pictures do not
    count, None has no files."""
    total = hashlib.sha256()
    with FileHashes(cache) as hashes:
        for number, directory in enumerate(directories):
            found = [p for level in _LEVELS for p in directory.glob(level)] if directory is not None else []
            for path in sorted(p for p in found if p.is_file() and p.suffix.lower() not in _PAGES):
                digest = hashes.of_file(str(path))[str(path)]
                total.update(f"{number} {path.relative_to(directory or path)} {digest}\n".encode())
    return total.hexdigest()


def digests(found: Fingerprint) -> dict[str, str]:
    """Part -> one hash of it; plugins are named with their versions elsewhere."""
    return {part: _digest(entries) for part, entries in found.items() if part != "plugins"}


def differences(
    before: Mapping[str, Mapping[str, str]], now: Fingerprint, accepted: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """Part -> what has changed in it, of those that are not ``accepted``; and notes on the others. A newer patch version of a
    plugin is only noted."""
    changed = {part: _changes(before.get(part, {}), now.get(part, {})) for part in sorted({*before, *now})}
    newer = [found for found in changed.get("plugins", []) if _is_newer_patch(*found[1:])]
    changed["plugins"] = [found for found in changed.get("plugins", []) if found not in newer]
    texts = {part: _text(part, found) for part, found in changed.items() if found}
    notes = [f"plugin {name} is newer: {old} -> {new}" for name, old, new in newer]
    taken = [text for part, text in texts.items() if part in accepted]
    notes += [f"accepted (run.accept_changes): {'; '.join(taken)}"] if taken else []
    return {part: text for part, text in texts.items() if part not in accepted}, notes


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, old, new); weights that are gone are needed or not, which loading shows."""
    names = sorted({*old, *new} - {name for name in old if name not in new and ".safetensors" in name})
    return [(name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name)]


def _is_newer_patch(old: str, new: str) -> bool:
    was, now = ([int(number) for number in re.findall(r"\d+", version)] for version in (old, new))
    return bool(was) and was[:2] == now[:2] and now > was


def _text(part: str, found: Sequence[tuple[str, str, str]]) -> str:
    return "; ".join(f"{part} {name}: {_short(old)} -> {_short(new)}" for name, old, new in found[:8])


def _short(value: str) -> str:
    return f"{value[:12]}…" if len(value) == 64 else value or "none"


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as stream:
        return stream_hash(stream)


def _digest(entries: Mapping[str, str]) -> str:
    """One sha256 of names and hashes."""
    return hashlib.sha256("".join(f"{name} {value}\n" for name, value in sorted(entries.items())).encode()).hexdigest()
