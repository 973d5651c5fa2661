"""Which files of a repository are fetched: of a model what describes it and safetensors, of a data set what a reader reads.
Never code, never pickles.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from erniecore.api import CheckpointError, DataError, UsageError
from erniecore.api.command import did_you_mean
from erniecore.api.data import codes
from erniecore.api.rows import FileTypes
from erniecore_hubs.names import HubName

_MODEL_FILES = (".json", ".safetensors", ".model", ".jinja", ".txt", ".md")
_PICKLES = (".bin", ".pdparams", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_LICENSES = ("LICENSE", "NOTICE")


def of_model(sizes: Mapping[str, int], name: HubName) -> dict[str, int]:
    """Name and bytes of the files of a model, those at the top of its repository.

    Raises:
        CheckpointError: there are no safetensors.
    """
    chosen = {
        file: size
        for file, size in _safe(sizes, name).items()
        if "/" not in file and (file.endswith(_MODEL_FILES) or file.startswith(_LICENSES))
    }
    if any(file.endswith(".safetensors") for file in chosen):
        return chosen
    pickles = sorted(file for file in sizes if file.endswith(_PICKLES))
    raise CheckpointError(
        "the weights of this model are pickles, which could run code" if pickles else "there are no weights here",
        where=str(name),
        found=", ".join(pickles[:3] or sorted(sizes)[:3]),
        expected="safetensors",
        fix="name a repository that has safetensors",
        code="ERN-K010" if pickles else "ERN-K020",
    )


def describing(sizes: Mapping[str, int]) -> dict[str, int]:
    """Those files of a model that are no weights: config.json, tokenizer, template, the index of the weights."""
    return {file: size for file, size in sizes.items() if not file.endswith(".safetensors")}


def of_data(sizes: Mapping[str, int], name: HubName) -> dict[str, int]:
    """Name and bytes of the data files that ``name`` stands for: one file or pattern, those of a split, or all.

    Raises:
        DataError: there is no such file, or none that an installed reader reads.
    """
    types = FileTypes()
    data = {
        file: size
        for file, size in _safe(sizes, name).items()
        if PurePosixPath(file).name[0] not in "._" and types.of(Path(file)).reader and not _describes(file)
    }
    if name.file:
        chosen = {file: size for file, size in data.items() if fnmatch.fnmatchcase(file, name.file)}
    else:
        word = re.compile(rf"(?:^|[^a-z]){re.escape(name.split[1:].lower())}(?:[^a-z]|$)")
        chosen = (
            {file: size for file, size in data.items() if word.search(file.lower())} or data if name.split else data
        )
    if not chosen:
        raise DataError(
            "there is no such data file in this repository",
            code=codes.MISSING_FILE,
            where=str(name),
            found=", ".join(sorted(sizes)[:5]) or "no files",
            expected="files with one of the endings " + ", ".join(types.endings()),
            fix=did_you_mean(name.file, data) if name.file else "name one of its files: hf:owner/name/FILE",
        )
    return chosen


def _describes(file: str) -> bool:
    """Whether a file is about the data: ``README.md``, ``dataset_infos.json``."""
    name = PurePosixPath(file).name
    return name.startswith(("README", *_LICENSES, "dataset_info")) or name in ("package.json", ".gitattributes")


def _safe(sizes: Mapping[str, int], name: HubName) -> Mapping[str, int]:
    """``sizes``, unless a file would be written outside of the directory, or over a part. Raises ``UsageError``."""
    for file in sizes:
        parts = file.split("/")
        if not {"", ".", "..", ".parts"}.isdisjoint(parts) or "\\" in file or not file.isprintable():
            raise UsageError("the hub names a file that no repository has", where=str(name), found=repr(file)[:200])
    return sizes
