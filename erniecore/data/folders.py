"""Data set directories to the files of one split: saved by Hugging Face datasets, or a folder of shards. Reads no rows.

``DIR`` is enough where there is one split; ``DIR:train`` names one. Nothing is chosen among several.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore_system.files import read_object

from erniecore import codes
from erniecore.data.file_types import FileTypes
from erniecore.errors import DataError, nearest, shorten

_SHARD = re.compile(r"(?P<split>.+?)-\d{3,}-of-\d{3,}(-[0-9a-f]+)?$")
_WORD = re.compile(r"(?:^|[^a-z])(train|test|validation|valid|val|dev|eval)(?:[^a-z]|$)")
#: What Hugging Face datasets writes at the top of a data set, and of one with splits.
_SAVED = ("state.json", "dataset_dict.json")
#: Files about a folder of data.
_TEXTS = ("README", "LICENSE", "CITATION")
#: Files that hub folders have beside their data.
_BESIDE = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "package.json"})


def files_of_split(directory: Path, split: str) -> tuple[Path, ...]:
    """The files of a split in the order of its rows; ``split`` empty: of the only one.

    Raises:
        DataError: the directory holds no data set, or several splits, or not this one.
    """
    if (directory / "dataset_dict.json").is_file():
        splits = _description(directory / "dataset_dict.json").get("splits", [])
        if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
            raise _damaged(directory / "dataset_dict.json", f"splits {shorten(splits)}", "save the data set again")
        return _saved(directory / _one(split, {name: [directory] for name in splits}, directory))
    if (directory / "state.json").is_file():
        name = _description(directory / "state.json").get("_split")
        if split and split != name:
            raise _no_split(split, [name] if name else [], directory)
        return _saved(directory)
    found = _by_split(directory)
    return tuple(found[_one(split, found, directory)])


def _one(split: str, found: Mapping[str, Sequence[Path]], directory: Path) -> str:
    """The split that is asked for, or the only one."""
    if not found:
        raise DataError(
            "the directory holds no data set",
            code=codes.IS_DIRECTORY,
            where=str(directory),
            expected="a data set saved by Hugging Face datasets, or files such as data/train-00000-of-00001.parquet",
            fix="name a data file, or the directory that holds them",
        )
    if split and split in found:
        return split
    if split:
        raise _no_split(split, sorted(found), directory)
    if len(found) > 1:
        names = sorted(found)
        raise DataError(
            "the directory holds several splits",
            code=codes.WHICH_SPLIT,
            where=str(directory),
            found=", ".join(name or "files without a split" for name in names),
            expected="one of them",
            fix=f"name one: {directory}:{'train' if 'train' in names else names[-1]}",
        )
    return next(iter(found))


def _no_split(split: str, names: Sequence[str], directory: Path) -> DataError:
    near = nearest(split, names)
    return DataError(
        "the directory has no such split",
        code=codes.WHICH_SPLIT,
        where=str(directory),
        found=repr(split),
        expected="one of " + ", ".join(names) if names else "no split behind the path",
        fix=f"did you mean {directory}:{near}?" if near else f"name it as {directory}{':' + names[0] if names else ''}",
    )


def _saved(directory: Path) -> tuple[Path, ...]:
    """The files of a data set that ``save_to_disk`` wrote, as its state.json lists them."""
    state = _description(directory / "state.json")
    listed = state.get("_data_files")
    names = [entry.get("filename") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    if state.get("_indices_data_files"):
        raise _damaged(directory / "state.json", "rows that are picked by an index", "save the data set again")
    files = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise _damaged(directory / "state.json", f"the file name {name!r}", "save the data set again")
        if not (directory / name).is_file():
            raise _damaged(directory / name, "no such file", "copy the whole directory")
        files.append(directory / name)
    if not files:
        raise _damaged(directory / "state.json", "no data files", "save the data set again")
    return tuple(files)


def _description(path: Path) -> dict[str, Any]:
    return read_object(
        path, DataError, code=codes.NOT_A_DATASET, fix="copy the whole directory, or save the data set again"
    )


def _damaged(path: Path, found: str, fix: str) -> DataError:
    return DataError(
        "the data set directory is damaged", code=codes.NOT_A_DATASET, where=str(path), found=found, fix=fix
    )


def _by_split(directory: Path) -> dict[str, list[Path]]:
    """Readable files of a folder and of the folders in it, by the split that their names, or those of their folders, have."""
    found: dict[str, list[Path]] = {}
    types = FileTypes()
    for file in _files(directory):
        if types.of(file).reader:
            found.setdefault(_split_in(file.relative_to(directory), types.of(file).ending), []).append(file)
    return found


def unread_files(directory: Path) -> dict[str, list[Path]]:
    """Why -> which files of a folder are not read; data files that are hidden, or behind links to folders, among them."""
    if any((directory / name).is_file() for name in _SAVED):
        return {}
    types, shown = FileTypes(), list(_files(directory))
    others = [file for file in shown if not types.of(file).reader and not file.name.startswith(_TEXTS)]
    skipped, seen = [], set(shown)
    for root, folders, names in os.walk(directory):
        files = (Path(root) / name for name in names if name not in _BESIDE)
        skipped += [file for file in files if file not in seen and types.of(file).reader]
        skipped += [Path(root) / name for name in folders if os.path.islink(os.path.join(root, name))]
    return {"of other kinds": others, "hidden, linked or of a data set of their own": sorted(skipped)}


def _files(directory: Path) -> Iterator[Path]:
    """The files of a folder, then those of the folders in it, by name; data sets that ``save_to_disk`` wrote are others."""
    shown = sorted(path for path in directory.iterdir() if path.name[0] not in "._" and path.name not in _BESIDE)
    yield from (path for path in shown if path.is_file())
    for path in shown:
        if path.is_dir() and not path.is_symlink() and not any((path / name).is_file() for name in _SAVED):
            yield from _files(path)


def _split_in(file: Path, ending: str) -> str:
    stem = file.name[: file.name.lower().rindex(ending)]
    shard = _SHARD.match(stem)
    if shard:
        return shard["split"]
    words = (_WORD.search(name.lower()) for name in (stem, *reversed(file.parts[:-1])))
    return next((word[1] for word in words if word), "")
