"""``ernie ckpt``: list, verify, replay, rewrite and prune checkpoints. Imports no paddle; prints."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import CheckpointError, Exit, UsageError, counted
from erniecore.api.command import JsonOption, new_group, note, show, show_json, show_table

if TYPE_CHECKING:
    from collections.abc import Iterable

app = new_group("List, verify, prove, rewrite and prune checkpoints.")

Directory = Annotated[Path, typer.Argument(help="A run directory, its ckpt directory, or one checkpoint.")]


@app.command("list")
def list_(directory: Directory, as_json: JsonOption = False) -> None:
    """Steps, sizes and status as the manifests say; reads no tensor (`verify` does)."""
    rows = [describe(path) for path in find(directory)]
    if as_json:
        show_json(rows)
        return
    if not rows:
        note(f"no checkpoints in {directory}")
        return
    columns = ("step", "status", "bytes", "created", "path")
    show_table(columns, [[f"{row[c]:,}" if c == "bytes" else row[c] for c in columns] for row in rows])


@app.command()
def verify(directory: Directory, as_json: JsonOption = False) -> int:
    """Hash every file and compare with the manifest; exit code 5 when anything differs. Takes model directories too."""
    from erniecore.api.checkpoints import MODEL_MANIFEST

    if (directory / MODEL_MANIFEST).is_file():
        rows = [_verify_model(directory)]
    else:
        rows = [_verify_checkpoint(path) for path in find(directory)]
    if not rows:
        raise UsageError("there are no checkpoints here", where=str(directory))
    good = all(row["ok"] for row in rows)
    if as_json:
        show_json({"ok": good, "checkpoints": rows})
    else:
        for row in rows:
            show(f"{'ok     ' if row['ok'] else 'DAMAGED'}  {row['path']}")
            show(*(f"         {_finding_text(finding)}" for finding in row["findings"]))
    return int(Exit.OK if good else Exit.CHECKPOINT)


@app.command()
def prune(
    directory: Directory,
    keep: Annotated[int, typer.Option(min=2, help="Newest verified checkpoints to keep.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Remove checkpoints older than the newest verified ones; only what erniecore wrote."""
    from erniecore.api.checkpoints import prune as prune_checkpoints
    from erniecore.api.checkpoints import translated

    root = _root(directory)
    if root is None:
        raise UsageError("name a run or its ckpt directory, not one checkpoint", where=str(directory))
    with translated(root, "removing checkpoints"):
        removed = [str(path) for path in prune_checkpoints(root, keep)]
    if as_json:
        show_json({"removed": removed})
    else:
        show(*([f"removed {path}" for path in removed] or ["nothing to remove"]))


@app.command()
def prove(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    first: Annotated[int | None, typer.Option("--from", metavar="STEP", help="Checkpoint to start from.")] = None,
    last: Annotated[int | None, typer.Option("--to", metavar="STEP", help="Checkpoint to compare with.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Repeat the steps between two checkpoints in a fresh process and compare every tensor; exit code 5 if one differs."""
    from erniecore_ckpt.replay import choose, replay

    found = replay(run, *choose(run, first, last))
    if as_json:
        show_json({"ok": not found.differing, **asdict(found)})
    else:
        steps = f"steps {found.first + 1} to {found.last} repeated in a fresh process"
        equal = found.tensors - len(found.differing)
        show(f"{steps}: {equal} of {found.tensors} tensors are the same to the last bit")
        show(*(f"DIFFERENT  {name}" for name in found.differing[:20]))
    return int(Exit.CHECKPOINT if found.differing else Exit.OK)


@app.command()
def reshard(
    checkpoint: Annotated[Path, typer.Argument(help="One checkpoint, e.g. run/ckpt/step-00000120.")],
    out: Annotated[Path, typer.Argument(help="Directory that will hold the new one; its own, to replace it.")],
    shard_gb: Annotated[float, typer.Option(min=1e-9, help="Largest file, in GB of 10^9 bytes.")] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint again in fewer or smaller files. No layout needs it: tensors are whole, each rank reads its shards."""
    from erniecore.api.checkpoints import read_manifest
    from erniecore_ckpt.rewriting import rewrite

    if _root(checkpoint) is not None:
        raise UsageError("name one checkpoint, not a run", where=str(checkpoint), next=f"ernie ckpt list {checkpoint}")
    before = len(read_manifest(checkpoint).files)
    path = rewrite(checkpoint, out, max(1, int(shard_gb * 10**9)))
    after = len(read_manifest(path).files)
    if as_json:
        show_json({"path": str(path), "files_before": before, "files": after})
    else:
        show(f"{path}: {counted(after, 'file')} ({before} before), every tensor the same to the last bit")


def find(directory: Path) -> list[Path]:
    """The checkpoints that ``directory`` means: itself, or those inside. Raises ``UsageError`` if it does not exist."""
    from erniecore.api.checkpoints import list_checkpoints

    root = _root(directory)
    return [directory] if root is None else list_checkpoints(root)


def _root(directory: Path) -> Path | None:
    """The directory that holds the checkpoints; ``None`` when ``directory`` is one itself."""
    from erniecore.api.checkpoints import MANIFEST_NAME, step_of

    if not directory.is_dir():
        raise UsageError("no such directory", where=str(directory))
    if (directory / MANIFEST_NAME).is_file() or step_of(directory.resolve().name) is not None:
        return None
    return directory / "ckpt" if (directory / "ckpt").is_dir() else directory


def describe(path: Path) -> dict[str, Any]:
    """One row of the list: facts of the manifest, or ``damaged`` when it cannot be read."""
    from erniecore.api.checkpoints import read_manifest, step_of

    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        row: dict[str, Any] = {"step": step_of(path.name), "status": "damaged", "bytes": 0, "created": ""}
        return {**row, "path": str(path), "message": error.message}
    return {
        "step": manifest.step,
        "status": manifest.status,
        "bytes": sum(file.num_bytes for file in manifest.files.values()),
        "created": manifest.created,
        "path": str(path),
        "parent_step": manifest.parent_step,
        "config_hash": manifest.config_hash,
        "groups": {
            group: _count(manifest.files[name].tensors for name in names) for group, names in manifest.groups.items()
        },
    }


def _count(files: Iterable[Any]) -> int:
    return sum(len(tensors) for tensors in files)


def _verify_checkpoint(path: Path) -> dict[str, Any]:
    from erniecore.api.checkpoints import step_of, verify_checkpoint

    findings = [{"file": f.file, "tensor": f.tensor, "message": f.message} for f in verify_checkpoint(path)]
    return {"path": str(path), "step": step_of(path.resolve().name), "ok": not findings, "findings": findings}


def _verify_model(path: Path) -> dict[str, Any]:
    from erniecore.api.checkpoints import verify_directory

    findings = []
    for problem in verify_directory(path):
        file, _, message = problem.partition(": ")
        findings.append({"file": file, "tensor": "", "message": message})
    return {"path": str(path), "step": None, "ok": not findings, "findings": findings}


def _finding_text(finding: dict[str, str]) -> str:
    return ": ".join(text for text in (finding["file"], finding["tensor"], finding["message"]) if text)
