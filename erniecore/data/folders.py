"""Data set directories to the files of one split: saved by Hugging Face datasets, or a folder of shards. Reads no rows.

``DIR`` is enough where there is one split; ``DIR:train`` names one. Nothing is chosen among several.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore import codes
from erniecore.data.file_types import FileTypes
from erniecore.errors import DataError, nearest

_SHARD = re.compile(r"(?P<split>.+?)-\d{3,}-of-\d{3,}(-[0-9a-f]+)?$")
_WORD = re.compile(r"(?:^|[^a-z])(train|test|validation|valid|val|dev|eval)(?:[^a-z]|$)")
#: Files that hub folders have beside their data.
_BESIDE = frozenset({"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "package.json"})


def files_of_split(directory: Path, split: str) -> tuple[Path, ...]:
    """The files of a split in the order of its rows; ``split`` empty: of the only one.

    Raises:
        DataError: the directory holds no data set, or several splits, or not this one.
    """
    if (directory / "dataset_dict.json").is_file():
        splits = _description(directory / "dataset_dict.json").get("splits", [])
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
    if split in found:
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
    names = [entry.get("filename") for entry in state.get("_data_files") or () if isinstance(entry, dict)]
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
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as e:
        raise _damaged(path, str(e), "copy the whole directory, or save the data set again") from e
    if not isinstance(value, dict):
        raise _damaged(path, "no object", "save the data set again")
    return value


def _damaged(path: Path, found: str, fix: str) -> DataError:
    return DataError(
        "the data set directory is damaged", code=codes.NOT_A_DATASET, where=str(path), found=found, fix=fix
    )


def _by_split(directory: Path) -> dict[str, list[Path]]:
    """Readable files of a folder, and of ``data`` in it, by the split in their names."""
    found: dict[str, list[Path]] = {}
    types = FileTypes()
    for place in (directory, directory / "data"):
        for file in sorted(place.iterdir()) if place.is_dir() else ():
            if file.is_file() and file.name not in _BESIDE and file.name[0] not in "._" and types.of(file).reader:
                found.setdefault(_split_in(file, types.of(file).ending), []).append(file)
    return found


def _split_in(file: Path, ending: str) -> str:
    stem = file.name[: file.name.lower().rindex(ending)]
    shard = _SHARD.match(stem)
    word = _WORD.search(stem.lower())
    return shard["split"] if shard else word[1] if word else ""
