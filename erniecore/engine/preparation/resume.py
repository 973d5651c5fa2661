"""Whether and from where a run continues: decided before anything heavy is built. The checkpoint is opened in
``continuing.py`` and its tensors are loaded in ``training/restore.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore_checkpoint.manifest import list_checkpoints

from erniecore.engine.config_hash import config_hash
from erniecore.engine.context import Resumption
from erniecore.engine.preparation import rundir
from erniecore.errors import CheckpointError, UsageError, nearest


def choose(out: Path, resume: str, settings: Mapping[str, Any], rows: int) -> Resumption:
    """Pick the checkpoint that ``run.resume`` means and compare its settings with the present ones.

    Args:
        out: the run directory.
        resume: ``auto``, ``never``, ``must`` or a checkpoint directory.
        settings: the settings as JSON.
        rows: of a step, on all ranks together.

    Raises:
        UsageError: ``never`` in a used directory; settings that change the mathematics.
        CheckpointError: ``must`` or a directory without a usable checkpoint.
    """
    if resume == "never":
        rundir.refuse_used(out)
        return Resumption()
    if resume in ("auto", "must"):
        path, notes = _newest(out / "ckpt")
        if path is None:
            return _anew(out, resume, notes, settings, rows)
        why = f"continuing from {path}: the newest verified checkpoint"
    else:
        path, notes = Path(resume), []
        if not path.is_dir():
            close = nearest(resume, ("auto", "never", "must"))
            fix = f"did you mean {close}?" if close else "name a directory like ckpt/step-00000120 of a run"
            raise CheckpointError(
                "no such checkpoint",
                where=f"run.resume: {resume}",
                expected="auto, never, must or a directory",
                fix=fix,
            )
        _check_branch(out, path, settings, rows)
        why = f"continuing from {path}: named by run.resume"
    from erniecore.engine.preparation.continuing import open_checkpoint

    checkpoint, differences = open_checkpoint(path, settings, rows)
    return Resumption(checkpoint, (*notes, why, *(f"changed setting {d}" for d in differences)))


def _newest(root: Path) -> tuple[Path | None, list[str]]:
    """See ``newest_verified``; a new run has no directory to look into."""
    if not root.is_dir():
        return None, []
    from erniecore_checkpoint.reader import newest_verified

    return newest_verified(root)


def _check_branch(out: Path, path: Path, settings: Mapping[str, Any], rows: int) -> None:
    """A named checkpoint starts a branch: it must not mix with newer checkpoints, or with those of another run."""
    if path.resolve().parent != (out / "ckpt").resolve():
        _check_owner(out, settings, rows)
    newer = [p.name for p in list_checkpoints(out / "ckpt") if p.name > path.name]
    if newer:
        raise UsageError(
            "the run directory has newer checkpoints, which would mix with those of the continued run",
            where=str(out / "ckpt"),
            found=", ".join(newer),
            fix="continue from the newest with --resume auto, choose another run.out (--out), or remove them",
            code="ERN-C021",
        )


def _anew(out: Path, resume: str, notes: Sequence[str], settings: Mapping[str, Any], rows: int) -> Resumption:
    if resume == "must" or notes:
        raise CheckpointError(
            "no usable checkpoint to continue from" if notes else "there is no checkpoint to continue from",
            where=str(out / "ckpt"),
            found="; ".join(notes),
            fix="start anew in another run.out" if notes else "start with --resume auto",
        )
    _check_owner(out, settings, rows)
    return Resumption(notes=("no checkpoint yet: starting from the beginning",) if rundir.used(out) else ())


def _check_owner(out: Path, settings: Mapping[str, Any], rows: int) -> None:
    """Raises ``UsageError`` if ``out`` belongs to a run with other settings, or holds files that no run of ours left."""
    start = rundir.last_start(out)
    if start is not None and not _same_settings(start, settings, rows):
        raise UsageError(
            "the run directory belongs to a run with other settings",
            where=str(out),
            fix="choose another run.out (--out), or remove the directory if you do not need it",
            code="ERN-C021",
        )
    foreign = [name for name in rundir.used(out) if name in ("model", "ckpt")]
    if start is None and (out / "config.json").is_file():
        foreign.append("config.json")  # a model directory, where the run would mix its files with the model's
    if start is None and foreign:
        raise UsageError(
            "the run directory holds files that are not this run's",
            where=str(out),
            found=", ".join(foreign),
            fix="choose another run.out (--out)",
            code="ERN-C021",
        )


def _same_settings(start: Mapping[str, Any], settings: Mapping[str, Any], rows: int) -> bool:
    """Whether a start had these settings, or these but for the micro-batches of a step, whose rows it split for another layout:
    an elastic run starts like that when a machine is lost before the first checkpoint."""
    if config_hash(settings) == start.get("config_hash"):
        return True
    before = {"batch_size": start.get("batch_size"), "accumulation": start.get("accumulation")}
    train = {**settings.get("train", {}), **before}
    return start.get("rows") == rows and config_hash({**settings, "train": train}) == start.get("config_hash")
