"""Finding and opening checkpoints; damaged ones are passed over aloud, never silently.

Nothing is written here. Tensors are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from erniecore_errors import CheckpointError
from erniecore_system.files import read_object

from erniecore_checkpoint.comparing import compare_tensors, list_problems
from erniecore_checkpoint.leftovers import set_aside
from erniecore_checkpoint.manifest import (
    STATE_NAME,
    Manifest,
    checkpoint_name,
    list_checkpoints,
    read_manifest,
    step_of,
)
from erniecore_checkpoint.safetensors_io import damaged, open_tensors
from erniecore_checkpoint.tensors import Array, Tensor
from erniecore_checkpoint.verify import is_verified, verify_checkpoint


class Tensors(Mapping[str, Array]):
    """The tensors of one group by name; a value is read from its file on access, as a read-only array."""

    def __init__(self, entries: Mapping[str, Tensor]) -> None:
        #: dtype and shape without reading
        self.entries = entries

    def __getitem__(self, name: str) -> Array:
        return self.entries[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Checkpoint:
    """An opened checkpoint.

    Attributes:
        path, manifest: where it is and what it consists of.
        state: the JSON state given to ``save_checkpoint``.
        tensors: group -> lazily read tensors.
    """

    def __init__(self, path: Path, manifest: Manifest, state: dict[str, Any], tensors: Mapping[str, Tensors]) -> None:
        self.path, self.manifest, self.state, self.tensors = path, manifest, state, tensors

    @property
    def step(self) -> int:
        return self.manifest.step

    def require(self, group: str, expected: Mapping[str, tuple[tuple[int, ...], str]]) -> Tensors:
        """The tensors of ``group``, if they are exactly those expected.

        Args:
            group: e.g. ``"model"``.
            expected: name -> (shape, safetensors dtype such as ``"F32"``; ``""`` accepts any).

        Raises:
            CheckpointError: the group, or a tensor, is missing, unexpected or has another shape or dtype; the message
                names them all (the first ten) with the nearest names.
        """
        found = self.tensors.get(group)
        if found is None:
            raise CheckpointError(
                f"this checkpoint has no {group!r} tensors",
                where=str(self.path),
                found=", ".join(self.tensors) or "none",
            )
        problems = compare_tensors(
            {name: (t.shape, t.dtype) for name, t in found.entries.items()}, expected, "the model of this run"
        )
        if problems:
            raise CheckpointError(
                f"the {group!r} tensors do not fit this run: " + list_problems(problems),
                where=str(self.path),
                fix="resume with the settings that the checkpoint was made with",
                code="ERN-K004",
            )
        return found


def load_checkpoint(path: Path, *, verify: bool = True) -> Checkpoint:
    """Open the checkpoint directory ``path``.

    Args:
        path: like ``ckpt/step-00000120``.
        verify: hash every file first, unless this process has done so since they last changed.

    Raises:
        CheckpointError: not a checkpoint, unfinished or damaged; names the file and the tensor.
    """
    manifest = read_manifest(path)
    if manifest.status != "complete" or (verify and not is_verified(path)):
        findings = verify_checkpoint(path)
        if findings:
            first = findings[0]
            more = f"; and {len(findings) - 1} more findings" if len(findings) > 1 else ""
            raise damaged(
                path / first.file,
                f"the checkpoint is damaged: {first.message}{more}",
                first.tensor,
                fix="use an older checkpoint: `run.resume=auto` takes the newest one that is whole",
                next=f"ernie ckpt list {path.parent}",
            )
    state = read_object(path / STATE_NAME, CheckpointError)
    groups = {group: _open_group(path, group, names, manifest) for group, names in manifest.groups.items()}
    return Checkpoint(path, manifest, state, groups)


def _open_group(path: Path, group: str, names: list[str], manifest: Manifest) -> Tensors:
    entries: dict[str, Tensor] = {}
    for name in names:
        opened = open_tensors(path / name)
        listed = manifest.files[name].tensors
        facts = {key: (tensor.shape, tensor.dtype) for key, tensor in opened.items()}
        problems = compare_tensors(facts, {k: (t.shape, t.dtype) for k, t in listed.items()}, "the manifest")
        if problems:
            raise damaged(path / name, f"the {group!r} tensors differ from the manifest: " + list_problems(problems))
        entries.update(opened)
    return Tensors(entries)


def newest_verified(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint in ``root`` whose every byte is right, and notes on those passed over.

    Returns:
        (path or ``None`` when there is none, notes for the user: empty when the newest one is whole).
    """
    notes: list[str] = []
    candidates = {step_of(path.name) or 0: path for path in list_checkpoints(root)}
    # a crash while a step was saved again can leave its older copy set aside
    for step, path in set_aside(root).items():
        candidates.setdefault(step, path)
    for step in sorted(candidates, reverse=True):
        path = candidates[step]
        if is_verified(path):
            if notes:
                notes.append(f"{checkpoint_name(step)} is whole and used instead")
            return path, notes
        findings = verify_checkpoint(path)
        notes.append(f"{path.name} is damaged and passed over: {findings[0] if findings else 'it changed meanwhile'}")
    return None, notes
