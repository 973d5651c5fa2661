"""The manifest of a checkpoint: what every file and tensor must be, and proof that this directory is ours.

Written twice: first with status ``writing`` (so that a crashed save can be recognized and removed), last, over it,
with status ``complete``. It is canonical JSON with its own hash, so any changed byte of it is found too.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erniecore_errors import CheckpointError, shorten
from erniecore_system.files import parse_json, read_bytes

from erniecore_checkpoint.files import translated
from erniecore_checkpoint.safetensors_io import damaged
from erniecore_checkpoint.safetensors_write import WrittenFile, WrittenTensor

MANIFEST_NAME = "MANIFEST.json"
STATE_NAME = "state.json"
KIND = "erniecore-checkpoint"
#: 1 had the hash of whole files only
FORMAT, READABLE = 2, (1, 2)
#: key of a file's hash that is made of its tensors' hashes
_BY_TENSOR = "sha256_of_hashes"

_NAME = re.compile(r"step-(\d{8,})")


def checkpoint_name(step: int) -> str:
    """Directory name of a step: ``step-00000120``."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step of a checkpoint directory's name; ``None`` for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and checkpoint_name(int(match[1])) == name else None


def list_checkpoints(root: Path) -> list[Path]:
    """Directories ``step-*`` in ``root``, oldest first, whether damaged or not; [] when ``root`` does not exist."""
    if not root.is_dir():
        return []
    steps = [(step, path) for path in root.iterdir() if (step := step_of(path.name)) is not None and path.is_dir()]
    return [path for _, path in sorted(steps)]


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint consists of.

    Attributes:
        step: optimizer steps done; ``parent_step``: the step that this run continued from, if any.
        status: ``writing`` or ``complete``.
        files: by name, with size, hash and tensors (with offsets and hashes).
        groups: name of a tensor group (``model``, ``optim``) -> its files in order.
        versions: distributions that wrote it; ``config_hash``: of the resolved settings.
        owner: process that writes or wrote it (``pid``, ``host``).
        created: UTC, ISO 8601.
    """

    step: int
    status: str
    files: dict[str, WrittenFile] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    parent_step: int | None = None
    config_hash: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    owner: dict[str, Any] = field(default_factory=dict)
    created: str = ""

    def to_bytes(self) -> bytes:
        """Canonical JSON with its own hash in ``sha256``."""
        content: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "status": self.status,
            "step": self.step,
            "parent_step": self.parent_step,
            "created": self.created,
            "config_hash": self.config_hash,
            "versions": self.versions,
            "owner": self.owner,
            "groups": self.groups,
            "files": {name: file_json(file) for name, file in self.files.items()},
        }
        return _canonical({**content, "sha256": hashlib.sha256(_canonical(content)).hexdigest()})


def _canonical(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def file_json(file: WrittenFile) -> dict[str, Any]:
    """A file's entry in the manifest."""
    entry: dict[str, Any] = {"bytes": file.num_bytes, (_BY_TENSOR if file.by_tensor else "sha256"): file.sha256}
    if file.tensors:
        entry["tensors"] = {
            name: {"dtype": t.dtype, "shape": list(t.shape), "slice": [t.begin, t.end], "sha256": t.sha256}
            for name, t in file.tensors.items()
        }
    return entry


def read_manifest(directory: Path) -> Manifest:
    """The manifest of ``directory``, checked against its own hash.

    Raises:
        CheckpointError: it is missing, not ours, of a newer format, or any byte of it has changed.
    """
    path = directory / MANIFEST_NAME
    if not path.is_file():
        raise CheckpointError(
            "this is not a checkpoint: it has no manifest",
            where=str(directory),
            expected=MANIFEST_NAME,
            fix="name a directory like ckpt/step-00000120 of a run",
        )
    with translated(path, "reading a checkpoint"):
        raw = read_bytes(path)
    try:
        content = parse_json(raw)
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise damaged(path, "this is not the manifest of a checkpoint", "", found=shorten(raw[:40]))
        if content["format"] not in READABLE:
            raise damaged(
                path, "unknown manifest format", found=shorten(content["format"]), fix="use a newer erniecore"
            )
        claimed = content.pop("sha256")
        canonical = _canonical(content)
        if hashlib.sha256(canonical).hexdigest() != claimed or raw != _canonical({**content, "sha256": claimed}):
            raise damaged(path, "the manifest has changed since it was written")
        return _from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, "the manifest is damaged") from error


def file_from_json(name: str, entry: dict[str, Any]) -> WrittenFile:
    """The reverse of :func:`file_json`; raises ``KeyError``, ``TypeError``, …"""
    tensors = {
        tensor: WrittenTensor(t["dtype"], tuple(t["shape"]), t["slice"][0], t["slice"][1], t["sha256"])
        for tensor, t in entry.get("tensors", {}).items()
    }
    by_tensor = _BY_TENSOR in entry
    return WrittenFile(name, entry["bytes"], entry[_BY_TENSOR if by_tensor else "sha256"], tensors, by_tensor)


def _from_json(content: dict[str, Any]) -> Manifest:
    for name in content["files"]:
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not a plain file name")
    files = {name: file_from_json(name, entry) for name, entry in content["files"].items()}
    return Manifest(
        step=content["step"],
        status=content["status"],
        files=files,
        groups=content["groups"],
        parent_step=content["parent_step"],
        config_hash=content["config_hash"],
        versions=content["versions"],
        owner=content["owner"],
        created=content["created"],
    )
