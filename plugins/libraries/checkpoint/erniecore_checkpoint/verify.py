"""Is a checkpoint what its manifest says, to the last byte? Finds the file and the tensor that is not.

Reading is all that happens here; choosing another checkpoint is the reader's business.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from erniecore_errors import CheckpointError
from erniecore_system.units import counted

from erniecore_checkpoint.files import translated
from erniecore_checkpoint.manifest import MANIFEST_NAME, read_manifest
from erniecore_checkpoint.safetensors_write import WrittenFile
from erniecore_checkpoint.verified import is_known, remember_verified

_CHUNK = 1 << 22
#: files that are hashed at the same time, where there are as many processors
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a checkpoint; ``tensor`` is empty when the damage is outside all tensors."""

    file: str
    tensor: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}: {self.tensor}: {self.message}" if self.tensor else f"{self.file}: {self.message}"


def verify_checkpoint(directory: Path) -> list[Finding]:
    """Everything wrong with ``directory``: manifest, missing or extra files, sizes, hashes. Empty: verified.

    All files are read and hashed. For a damaged file every damaged tensor is a finding of its own.
    """
    try:
        manifest = read_manifest(directory)
    except CheckpointError as error:
        return [Finding(MANIFEST_NAME, "", error.message)]
    if manifest.status != "complete":
        return [Finding(MANIFEST_NAME, "", f"the save was not finished (status {manifest.status})")]
    findings = [
        Finding(path.name, "", "this file is not in the manifest")
        for path in sorted(directory.glob("*.safetensors"))
        if path.name not in manifest.files
    ]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "verify") as executor:
        for found in executor.map(partial(_findings, directory), manifest.files.values()):
            findings += found
    if not findings:
        remember_verified(directory)
    return findings


def is_verified(directory: Path) -> bool:
    """As ``verify_checkpoint``, but hashes nothing when this process has done so and no file changed since."""
    return is_known(directory) or not verify_checkpoint(directory)


def _findings(directory: Path, file: WrittenFile) -> list[Finding]:
    try:
        return _check_file(directory / file.name, file)
    except CheckpointError as error:
        return [Finding(file.name, "", str(error))]


def _check_file(path: Path, file: WrittenFile) -> list[Finding]:
    if not path.is_file():
        return [Finding(file.name, _first(file, 0), "the file is missing")]
    size = path.stat().st_size
    if size < file.num_bytes:
        message = f"the file is truncated: {size} of {file.num_bytes} bytes"
        return [Finding(file.name, _first(file, size), message)]
    if size > file.num_bytes:
        return [Finding(file.name, "", f"the file is too long by {counted(size - file.num_bytes, 'byte')}")]
    if not file.by_tensor and _hash(path, 0, size) == file.sha256:
        return []
    bad = [n for n, t in file.tensors.items() if _hash(path, t.begin, t.end) != t.sha256]
    if file.by_tensor and not bad and _hash_of_hashes(path, file) == file.sha256:
        return []
    if not bad:
        place = "its header has changed" if file.tensors else "its content has changed"
        return [Finding(file.name, "", f"sha256 differs: {place}")]
    return [Finding(file.name, name, "sha256 differs: its bytes have changed") for name in bad]


def _hash_of_hashes(path: Path, file: WrittenFile) -> str:
    """Of the header, which ends where the first tensor begins, and the tensors' hashes as the manifest has them."""
    header = min((t.begin for t in file.tensors.values()), default=file.num_bytes)
    with translated(path, "verifying a checkpoint"), path.open("rb") as stream:
        digest = hashlib.sha256(stream.read(header))
    for _, tensor in sorted(file.tensors.items()):
        digest.update(tensor.sha256.encode())
    return digest.hexdigest()


def _first(file: WrittenFile, size: int) -> str:
    """The first tensor that does not fit into ``size`` bytes."""
    cut = [(t.begin, name) for name, t in file.tensors.items() if t.end > size]
    return min(cut)[1] if cut else ""


def _hash(path: Path, begin: int, end: int) -> str:
    digest = hashlib.sha256()
    with translated(path, "verifying a checkpoint"), path.open("rb") as stream:
        stream.seek(begin)
        left = end - begin
        while left > 0 and (chunk := stream.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest()
