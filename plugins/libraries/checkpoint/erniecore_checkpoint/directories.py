"""Directories that appear whole or not at all, with a manifest that makes them recognisable as ours.

For model directories and exports. Checkpoints have their own stricter writer.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from erniecore_errors import CheckpointError
from erniecore_system.durable import sync_directory
from erniecore_system.files import file_hash, read_json

from erniecore_checkpoint.files import translated

MODEL_MANIFEST = "erniecore_manifest.json"
KIND = "erniecore-model"
#: where a run leaves its adapter
ADAPTER_DIRECTORY = "adapter"
#: where a run leaves the codes of a quantizer that trains weights
QUANTIZED_DIRECTORY = "quantized"
#: in a directory that is still being written; holds the writer's process id, and the writer has locked it
WRITING = ".erniecore-writing"


def write_directory_manifest(
    directory: Path, provenance: Mapping[str, Any], known: Mapping[str, str] | None = None
) -> None:
    """Write ``erniecore_manifest.json``: size and sha256 of every file in ``directory``, and where it comes from.

    Args:
        directory: finished but for the manifest.
        provenance: JSON values.
        known: file name -> sha256 where the writer already knows it.
    """
    files = {
        str(path.relative_to(directory)): {
            "bytes": path.stat().st_size,
            "sha256": (known or {}).get(path.name) or file_hash(path),
        }
        for path in _files(directory)
        if path.name not in (MODEL_MANIFEST, WRITING)
    }
    content = {"kind": KIND, "format": 1, "provenance": dict(provenance), "files": files}
    write_json(directory / MODEL_MANIFEST, content)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """``content`` as readable JSON; returns ``path``."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def verify_directory(
    directory: Path, names: Collection[str] | None = None, hash_of: Callable[[Path], str] = file_hash
) -> list[str]:
    """What differs between ``directory`` and its manifest, one line each; [] also when it has no manifest.

    Args:
        names: look only at these of the listed files. hash_of: sha256 of a file, read or remembered.
    """
    manifest = _read(directory)
    problems = []
    for name, entry in (manifest or {}).items():
        if names is not None and name not in names:
            continue
        path = directory / name
        inside = not {"..", "/"} & set(Path(name).parts)
        if not inside or not isinstance(entry, dict) or not {"bytes", "sha256"} <= entry.keys():
            problems.append(f"{name}: {MODEL_MANIFEST} does not say what it was")
        elif not path.is_file():
            problems.append(f"{name}: the file is missing")
        elif path.stat().st_size != entry["bytes"]:
            problems.append(f"{name}: {path.stat().st_size} bytes, written were {entry['bytes']}")
        elif hash_of(path) != entry["sha256"]:
            problems.append(f"{name}: sha256 differs from the manifest")
    return problems


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _read(directory: Path) -> dict[str, dict[str, Any]] | None:
    try:
        content = read_json(directory / MODEL_MANIFEST)
        files = content["files"] if content["kind"] == KIND else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if isinstance(files, dict) else None


def check_target(target: Path) -> None:
    """Raise ``CheckpointError`` unless ``target`` is free, empty, or a directory of ours without foreign files."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise CheckpointError("the target exists and is not a directory", where=str(target), fix="choose another name")
    if not target.is_dir() or not any(target.iterdir()):
        return
    listed = _read(target)
    if listed is None:
        raise CheckpointError(
            "the target directory holds files that erniecore did not write; nothing was changed",
            where=str(target),
            fix="choose an empty directory or a new name",
        )
    foreign = [n for p in _files(target) if (n := str(p.relative_to(target))) not in listed and n != MODEL_MANIFEST]
    if foreign:
        raise CheckpointError(
            "the target directory holds files besides the model that erniecore wrote; nothing was changed",
            where=str(target),
            found=", ".join(foreign[:5]),
            fix="move them away or choose another directory",
        )


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """An empty directory beside ``target`` that takes its name when the block ends without an error.

    Everything in it is on the disk before the rename. A directory of ours at ``target`` is replaced; on an error it
    stays as it was and the new one is removed.

    Raises:
        CheckpointError: see :func:`check_target`; or the disk is full, failing or read-only.
    """
    target = Path(os.path.abspath(target))
    check_target(target)
    with translated(target, "writing a model directory", "the target is unchanged"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(target)
        temporary = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
        temporary.mkdir()
        try:
            with claimed(temporary):
                yield temporary
                publish(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def publish(temporary: Path, target: Path) -> None:
    """``temporary``, which carries the mark of its writer, onto the disk and to ``target``, in place of what is there."""
    (temporary / WRITING).unlink()
    for path in _files(temporary):
        _sync_file(path)
    for directory in {path.parent for path in _files(temporary)} | {temporary}:
        sync_directory(directory)
    if not target.exists():
        os.rename(temporary, target)
    else:
        aside = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
        os.rename(target, aside)
        try:
            os.rename(temporary, target)
        except BaseException:
            os.rename(aside, target)
            raise
        shutil.rmtree(aside)
    sync_directory(target.parent)


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _clear_leftovers(target: Path) -> None:
    """Remove what killed writers of this very target left; only directories that carry their mark."""
    pattern = re.compile(rf"\.tmp-{re.escape(target.name)}-[0-9a-f]{{8}}")
    for path in target.parent.iterdir():
        mark = path / WRITING
        if pattern.fullmatch(path.name) and mark.is_file():
            with suppress(CheckpointError), claimed(path):
                shutil.rmtree(path)


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """``directory`` carries the mark of this process as its writer, locked while the block runs: the system lets go of it when
    the process ends, however that happens, and no other process can be taken for it.

    Raises:
        CheckpointError: another writer has it.
    """
    mark = directory / WRITING
    # a new mark is locked before anyone can see it
    path = mark if mark.is_file() else mark.with_name(f"{WRITING}-{secrets.token_hex(4)}")
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _locked(file):
            raise CheckpointError(
                "another process writes this directory",
                where=str(directory),
                found=f"process {os.read(file, 20).decode('ascii', 'replace')}",
                fix="wait for it, or stop it",
            )
        os.truncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        if path != mark:
            path.rename(mark)
        yield
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    """Whether this process has the lock of an open file now; also where the file system knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True
