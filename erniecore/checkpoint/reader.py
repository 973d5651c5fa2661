"""Finding and opening checkpoints; damaged ones are passed over aloud, never silently.

Nothing is written here. Tensors are read when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from erniecore.checkpoint.files import translated
from erniecore.checkpoint.leftovers import set_aside
from erniecore.checkpoint.manifest import STATE_NAME, Manifest, checkpoint_name, read_manifest, step_of
from erniecore.checkpoint.safetensors_io import damaged, open_tensors
from erniecore.checkpoint.tensors import Array, Tensor
from erniecore.checkpoint.verify import is_verified, verify_checkpoint
from erniecore.errors import CheckpointError, nearest


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


def compare_tensors(
    found: Mapping[str, tuple[tuple[int, ...], str]],
    expected: Mapping[str, tuple[tuple[int, ...], str]],
    owner: str,
) -> list[str]:
    """What differs between the tensors found and those expected, one line each; missing ones with the nearest name."""
    problems: list[str] = []
    spare = [name for name in found if name not in expected]
    for name, (shape, dtype) in expected.items():
        if name not in found:
            problems.append(f"{name} is missing" + hint(name, spare, problems))
        elif found[name][0] != shape:
            problems.append(f"{name} has shape {list(found[name][0])}, expected {list(shape)}")
        elif dtype and found[name][1] != dtype:
            problems.append(f"{name} has dtype {found[name][1]}, expected {dtype}")
    problems += [f"{name} is not in {owner}" for name in spare]
    return problems


#: problems that a message lists
_LISTED = 10


def hint(name: str, others: Iterable[str], problems: list[str]) -> str:
    """`` (near: ...)`` with the most similar of ``others``; nothing once so many problems are known that none is shown.

    Similarity of thousands of names to thousands of others would take minutes.
    """
    near = nearest(name, others) if len(problems) < _LISTED else None
    return f" (near: {near})" if near else ""


def list_problems(problems: list[str], limit: int = _LISTED) -> str:
    """The first ``limit`` problems as one text, and how many more there are."""
    more = f"; and {len(problems) - limit} more" if len(problems) > limit else ""
    return "; ".join(problems[:limit]) + more


def list_checkpoints(root: Path) -> list[Path]:
    """Directories ``step-*`` in ``root``, oldest first, whether damaged or not; [] when ``root`` does not exist."""
    if not root.is_dir():
        return []
    steps = [(step, path) for path in root.iterdir() if (step := step_of(path.name)) is not None and path.is_dir()]
    return [path for _, path in sorted(steps)]


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
    with translated(path, "reading a checkpoint"):
        state = json.loads((path / STATE_NAME).read_bytes())
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
