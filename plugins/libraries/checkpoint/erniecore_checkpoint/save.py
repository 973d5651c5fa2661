"""A checkpoint of tensors that one process has, in one call. A run saves with ``writer.Save``, from several processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore_checkpoint.safetensors_write import DEFAULT_SHARD_BYTES, WrittenFile, write_shards
from erniecore_checkpoint.tensors import Array, Tensor
from erniecore_checkpoint.writer import Save, check_groups


def save_checkpoint(
    root: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Array | Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 3,
    parent_step: int | None = None,
    config_hash: str = "",
    versions: Mapping[str, str] | None = None,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
) -> Path:
    """Save step ``step`` below ``root`` and remove checkpoints that ``keep`` no longer covers.

    Args:
        root: the run's ``ckpt`` directory; made when missing.
        step: optimizer steps done. A checkpoint of the same step is replaced.
        tensors: group (``model``, ``optim``, ``ema``: letters, digits, dots) -> name -> numpy array or ``Tensor``.
            uint16 arrays are bfloat16.
        state: JSON values only, with text keys.
        keep: verified checkpoints to keep, at least 2.
        parent_step, config_hash, versions: for the manifest.

    Returns:
        The new directory ``root/step-%08d``.

    Raises:
        CheckpointError: no space, a failing disk, no permission, a tensor or state that cannot be stored. Checkpoints
            saved before are untouched and the temporary directory is removed.
    """
    items = _check_tensors(tensors)
    save = Save(root, step, state, keep, parent_step=parent_step, config_hash=config_hash, versions=versions)
    temporary = save.begin(sum(t.num_bytes for group in items.values() for t in group.values()))
    files, groups = dict[str, WrittenFile](), dict[str, list[str]]()
    with save.watched():
        for group, members in items.items():
            written = write_shards(temporary, group, members, max_shard_bytes, by_tensor=True)
            groups[group] = [file.name for file in written]
            files.update({file.name: file for file in written})
    return save.finish(files, groups)


def _check_tensors(tensors: Mapping[str, Mapping[str, Array | Tensor]]) -> dict[str, dict[str, Tensor]]:
    check_groups(tensors)
    return {
        group: {name: Tensor.of(array, f"{group}: {name}") for name, array in members.items()}
        for group, members in tensors.items()
    }
