"""The identity of tokenized data: content of the file, how it is read, and everything that the encoder is made of.

Equal keys mean equal samples. The encoder is described by its own state, as it travels to worker processes, so no setting
can be forgotten; the code of its package and of ours counts too, so that a cache never outlives a change of either.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from pydantic import BaseModel

import erniecore
from erniecore.api import DataError
from erniecore.api.data import Encoder, codes, media_reader
from erniecore.api.rows import DataSource, ReadLimits
from erniecore.api.token_cache import file_hash, reader_of, shards_of

#: libraries whose version can change tokens
_LIBRARIES = ("sentencepiece", "jinja2")
#: packages whose objects are values: their code makes no tokens
_FIXED_PACKAGES = frozenset({*sys.stdlib_module_names, "numpy"})
#: parts of our own package that samples depend on
_OWN_PARTS = ("data", "types")


class Unknown(Exception):
    """A value has no stable description; the text names its place."""


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a data file that the operating system refuses to read."""
    found = error.strerror or str(error)
    return DataError("the data file cannot be read", code=codes.MISSING_FILE, where=str(path), found=found)


def entry_key(
    source: DataSource, content: Mapping[str, Any], encoder: Encoder, limits: ReadLimits
) -> tuple[str, dict[str, Any]]:
    """(key of the samples of one source, what it stands for as readable JSON).

    Raises:
        DataError: the encoder, or the format's settings, hold something without a stable description.
    """
    plugins = (source.parser.plugin, *map(reader_of, shards_of(source.path)))
    packages = {erniecore.__name__, *(type(plugin).__module__.partition(".")[0] for plugin in plugins)}
    state = _described(encoder, "the encoder", packages)
    about = {
        "file": source.file,
        "bytes": content["bytes"],
        "sha256": content["sha256"],
        "endings": sorted({"".join(file.suffixes[-2:]).lower() for file in shards_of(source.path)}),
        "format": source.parser.name,
        "format_settings": _described(source.parser.config, "the settings of the format"),
        "encoder": f"{type(encoder).__module__}.{type(encoder).__qualname__}",
        "encoder_state": state,
        "limits": repr(limits),
        "code": _code_of(frozenset(packages)),
        "erniecore": erniecore.__version__,
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }
    if media_reader(encoder) is not None:  # relative paths start there
        about["images_from"] = os.path.dirname(os.path.abspath(source.file))
    relevant = {name: value for name, value in about.items() if name != "file"}
    return _described(relevant, "the key")[:40], about


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _described(value: Any, what: str, packages: set[str] | None = None) -> str:
    """sha256 of a value; the top-level packages of the objects in it are added to ``packages``."""
    digest = hashlib.sha256()
    describer = _Describer(digest)
    try:
        describer.add(value, what)
    except Unknown as e:
        raise DataError(
            f"what is in {what} cannot be told apart, so its samples cannot be kept on disk",
            code=codes.CACHE_UNKEYED,
            found=str(e),
            fix="set data.cache=off, or give the class a __reduce__ that returns what it is made of",
        ) from e
    if packages is not None:
        packages |= describer.packages
    return digest.hexdigest()


class _Describer:
    """Writes values into a digest so that different values give different bytes."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest
        self.packages: set[str] = set()
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps ids unique

    def _put(self, tag: str, data: bytes = b"") -> None:
        self._digest.update(f"{tag} {len(data)} ".encode() + data)

    def add(self, value: Any, place: str) -> None:
        """Hash ``value``; ``place`` names it in errors."""
        if value is None or isinstance(value, bool | int | float | complex | str):
            self._put(type(value).__name__, repr(value).encode("utf-8", "surrogatepass"))
        elif isinstance(value, bytes | bytearray):
            self._put("bytes", bytes(value))
        elif isinstance(value, type | FunctionType | BuiltinFunctionType):
            self._name(value, place)
        elif isinstance(value, PurePath):
            self._put("path", str(value).encode())
        else:
            self._object(value, place)

    def _name(self, value: Any, place: str) -> None:
        name = f"{value.__module__}.{value.__qualname__}"
        if "<" in name:
            raise Unknown(f"{place} is {name}, which has no name of its own")
        self._put("name", name.encode())

    def _object(self, value: Any, place: str) -> None:
        if id(value) in self._seen:
            self._put("again", str(self._seen[id(value)]).encode())
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if isinstance(value, np.ndarray):
            self._put(f"array {value.dtype.str} {value.shape}", np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Mapping):
            self._items("map", sorted(value.items(), key=lambda item: repr(item[0])), place)
        elif isinstance(value, list | tuple):
            self._items(type(value).__name__, value, place)
        elif isinstance(value, set | frozenset):
            self._items("set", sorted(value, key=repr), place)
        elif isinstance(value, BaseModel):
            self._name(type(value), place)
            self.add(value.model_dump(mode="json"), place)
        else:
            self._state(value, place)

    def _items(self, tag: str, items: Iterable[Any], place: str) -> None:
        values = list(items)
        self._put(tag, str(len(values)).encode())
        for item in values:
            self.add(item, place)

    def _state(self, value: Any, place: str) -> None:
        """As the value travels to another process."""
        inside = f"{place}.{type(value).__name__}"
        try:
            reduced = value.__reduce_ex__(4)
        except TypeError as e:
            raise Unknown(f"{inside}: {e}") from e
        self._name(type(value), place)
        self.packages |= {type(value).__module__.partition(".")[0]} - _FIXED_PACKAGES
        if isinstance(reduced, str):
            self._put("global", reduced.encode())
            return
        for part in reduced:
            self.add(list(part) if isinstance(part, Iterator) else part, inside)


@lru_cache(maxsize=8)
def _code_of(packages: frozenset[str]) -> str:
    """sha256 over the sources of top-level packages."""
    digest = hashlib.sha256()
    for package in sorted(packages):
        module = sys.modules.get(package)
        found = None if module is None else module.__dict__.get("__file__")
        if found is None:
            continue  # made in memory: its state is all there is
        root = Path(found)
        parts = [root.parent / part for part in _OWN_PARTS] if package == erniecore.__name__ else [root.parent]
        files = sorted(f for part in parts for f in part.rglob("*.py")) if root.name == "__init__.py" else [root]
        for file in files:
            digest.update(f"{package} {file.relative_to(root.parent)} {file_hash(file)}\n".encode())
    return digest.hexdigest()
