"""Whether and from where a run continues: decided before anything heavy is built. Loading is in ``state.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from erniecore import retired
from erniecore.checkpoint.manifest import list_checkpoints
from erniecore.checkpoint.reader import Checkpoint, load_checkpoint, newest_verified
from erniecore.codes import FILE_CHANGED, SAMPLES_CHANGED
from erniecore.engine.drift import SPLIT, Difference, compare
from erniecore.engine.preparation import rundir
from erniecore.errors import CheckpointError, DataError, UsageError, nearest

#: version of the content of ``state.json``
STATE_FORMAT = 2


@dataclass(frozen=True)
class Resumption:
    """The choice, and what the user should read about it.

    Attributes:
        checkpoint: continue from it; ``None``: start anew.
        notes: why this one, which checkpoints are damaged, which settings changed.
    """

    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = field(default=())

    def noting(self, *notes: str) -> Resumption:
        """The same with further notes."""
        return replace(self, notes=(*self.notes, *notes)) if notes else self


def choose(out: Path, resume: str, settings: Mapping[str, Any], hash_now: str, data_size: int = 1) -> Resumption:
    """Pick the checkpoint that ``run.resume`` means and compare its settings with the present ones.

    Args:
        out: the run directory.
        resume: ``auto``, ``never``, ``must`` or a checkpoint directory.
        settings: the settings as JSON. hash_now: their ``config_hash``.
        data_size: ranks that train on different rows.

    Raises:
        UsageError: ``never`` in a used directory; settings that change the mathematics.
        CheckpointError: ``must`` or a directory without a usable checkpoint.
    """
    if resume == "never":
        rundir.refuse_used(out)
        return Resumption()
    if resume in ("auto", "must"):
        path, notes = newest_verified(out / "ckpt")
        if path is None:
            return _anew(out, resume, notes, hash_now)
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
        _check_branch(out, path, hash_now)
        why = f"continuing from {path}: named by run.resume"
    checkpoint = load_checkpoint(path)
    if checkpoint.state.get("format") != STATE_FORMAT:
        raise CheckpointError(
            "this checkpoint was written by another version",
            where=str(path),
            found=f"state format {checkpoint.state.get('format')}",
            expected=str(STATE_FORMAT),
            fix="continue with the erniecore version that is named in its MANIFEST.json",
        )
    differences = changes(checkpoint, settings, data_size)
    refuse(differences, checkpoint.path)
    notes += [why, *(f"changed setting {d}" for d in differences)]
    return Resumption(checkpoint, tuple(notes), tuple(differences))


def changes(checkpoint: Checkpoint, settings: Mapping[str, Any], data_size: int) -> list[Difference]:
    """Settings that differ from the checkpoint's; one more where a step would have another number of rows."""
    before = retired.renamed_settings(checkpoint.state["settings"])
    rows = rows_per_step(before, checkpoint.state.get("data_size", 1)), rows_per_step(settings, data_size)
    differences = compare(before, settings, same_rows=rows[0] == rows[1])
    if rows[0] != rows[1] and not any(d.key in SPLIT for d in differences):
        differences.append(Difference("rows per step, on all ranks together", *rows))
    return differences


def rows_per_step(settings: Mapping[str, Any], data_size: int) -> int:
    """Rows that all ranks together take for one optimizer step."""
    train = settings["train"]
    return int(train.get("batch_size", 1)) * int(train.get("accumulation", 1)) * data_size


def _check_branch(out: Path, path: Path, hash_now: str) -> None:
    """A named checkpoint starts a branch: it must not mix with newer checkpoints, or with those of another run."""
    if path.resolve().parent != (out / "ckpt").resolve():
        _check_owner(out, hash_now)
    newer = [p.name for p in list_checkpoints(out / "ckpt") if p.name > path.name]
    if newer:
        raise UsageError(
            "the run directory has newer checkpoints, which would mix with those of the continued run",
            where=str(out / "ckpt"),
            found=", ".join(newer),
            fix="continue from the newest with --resume auto, choose another run.out (--out), or remove them",
            code="ERN-C021",
        )


def _anew(out: Path, resume: str, notes: Sequence[str], hash_now: str) -> Resumption:
    if resume == "must" or notes:
        raise CheckpointError(
            "no usable checkpoint to continue from" if notes else "there is no checkpoint to continue from",
            where=str(out / "ckpt"),
            found="; ".join(notes),
            fix="start anew in another run.out" if notes else "start with --resume auto",
        )
    _check_owner(out, hash_now)
    return Resumption(notes=("no checkpoint yet: starting from the beginning",) if rundir.used(out) else ())


def _check_owner(out: Path, hash_now: str) -> None:
    """Raises ``UsageError`` if ``out`` belongs to a run with other settings, or holds files that no run of ours left."""
    start = rundir.last_start(out)
    if start is not None and start.get("config_hash") != hash_now:
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


def refuse(differences: Sequence[Difference], where: Path) -> None:
    """Raise ``UsageError`` naming every difference that would change the mathematics."""
    bad = [d for d in differences if d.refused]
    if bad:
        raise UsageError(
            f"{len(bad)} setting{'s differ' if len(bad) > 1 else ' differs'} from the checkpoint's and would change the "
            "result: " + "; ".join(str(d) for d in bad),
            where=str(where),
            fix="use the old values, or choose another run.out (--out) for a new run",
            code="ERN-C021",
        )


def check_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ``DataError`` when a training file is not the one that the checkpoint saw, naming it.

    Args:
        before, now: ``data`` of ``state.json``: ``files`` (a list of ``path``, ``bytes``, ``sha256``).
    """
    old, new = before["files"], now["files"]
    if len(old) != len(new):
        raise DataError("the number of training files changed", found=str(len(new)), expected=str(len(old)))
    for was, is_ in zip(old, new, strict=True):
        if (was["bytes"], was["sha256"]) != (is_["bytes"], is_["sha256"]):
            raise DataError(
                "this training file changed since the checkpoint was saved",
                where=is_["path"],
                found=f"{is_['bytes']} bytes, sha256 {is_['sha256'][:12]}…",
                expected=f"{was['bytes']} bytes, sha256 {was['sha256'][:12]}…",
                fix="restore the file, or start a new run in another run.out",
                code=FILE_CHANGED,
            )
    if before.get("fingerprint") != now.get("fingerprint"):
        raise DataError(
            "the same files give other samples than before",
            fix="use the tokenizer, chat template and erniecore version that the checkpoint was made with",
            code=SAMPLES_CHANGED,
        )
