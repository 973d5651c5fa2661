"""The same checkpoint in other files: fewer and larger ones, or smaller ones. No layout needs it: a checkpoint holds whole
tensors, of which each rank reads its shards.
"""

from __future__ import annotations

from pathlib import Path

from erniecore.api import CheckpointError
from erniecore.api.checkpoints import Manifest, load_checkpoint, read_manifest, save_checkpoint

#: the new checkpoint replaces no older one of the run
_ALL = 10**9


def rewrite(source: Path, root: Path, max_shard_bytes: int) -> Path:
    """Write the checkpoint ``source`` again below ``root``, in files of at most so many bytes; one tensor is in memory at a
    time.

    Args:
        source: a checkpoint; every byte of it is verified first.
        root: holds the new ``step-%08d``; may be where ``source`` lies, which is then replaced once the new one is whole.

    Returns:
        The new directory.

    Raises:
        CheckpointError: ``source`` is damaged, or the disk fails; ``source`` is untouched.
    """
    checkpoint = load_checkpoint(source)
    before = checkpoint.manifest
    target = save_checkpoint(
        root,
        checkpoint.step,
        {group: tensors.entries for group, tensors in checkpoint.tensors.items()},
        checkpoint.state,
        keep=_ALL,
        parent_step=before.parent_step,
        config_hash=before.config_hash,
        versions=before.versions,
        max_shard_bytes=max_shard_bytes,
    )
    if tensor_hashes(read_manifest(target)) != tensor_hashes(before):
        raise CheckpointError("what was written is not what was read: the disk or the memory fails", where=str(target))
    return target


def tensor_hashes(manifest: Manifest) -> dict[str, str]:
    """``group: name`` -> sha256 of every tensor."""
    return {
        f"{group}: {name}": tensor.sha256
        for group, files in manifest.groups.items()
        for file in files
        for name, tensor in manifest.files[file].tensors.items()
    }
