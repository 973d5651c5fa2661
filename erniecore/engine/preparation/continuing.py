"""Opening the checkpoint that a run continues from: written by this version, with settings and files that give the same
numbers. Which one it is was decided in ``resume.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erniecore_catalog import retired
from erniecore_checkpoint.reader import Checkpoint, load_checkpoint

from erniecore.codes import FILE_CHANGED, SAMPLES_CHANGED
from erniecore.engine.drift import SPLIT, Difference, compare
from erniecore.engine.preparation.rundir import STATE_FORMAT
from erniecore.errors import CheckpointError, DataError, UsageError


def open_checkpoint(path: Path, settings: Mapping[str, Any], rows: int) -> tuple[Checkpoint, list[Difference]]:
    """A checkpoint, and the settings that differ from its own; see ``resume.choose`` for the arguments.

    Raises:
        CheckpointError: it is damaged, or another version wrote it. UsageError: settings that change the mathematics.
    """
    checkpoint = load_checkpoint(path)
    if checkpoint.state.get("format") != STATE_FORMAT:
        raise CheckpointError(
            "this checkpoint was written by another version",
            where=str(path),
            found=f"state format {checkpoint.state.get('format')}",
            expected=str(STATE_FORMAT),
            fix="continue with the erniecore version that is named in its MANIFEST.json",
        )
    differences = changes(checkpoint, settings, rows)
    refuse(differences, checkpoint.path)
    return checkpoint, differences


def changes(checkpoint: Checkpoint, settings: Mapping[str, Any], rows_now: int) -> list[Difference]:
    """Settings that differ from the checkpoint's; one more where a step would have another number of rows."""
    before = retired.renamed_settings(checkpoint.state["settings"])
    rows = rows_per_step(before, checkpoint.state), rows_now
    differences = compare(before, settings, same_rows=rows[0] == rows[1])
    if rows[0] != rows[1] and not any(d.key in SPLIT for d in differences):
        differences.append(Difference("rows per step, on all ranks together", *rows))
    return differences


def rows_per_step(settings: Mapping[str, Any], state: Mapping[str, Any]) -> int:
    """Rows that all ranks together took for one optimizer step, by the settings and the rest of a checkpoint's state."""
    train = settings["train"]
    usual = int(train.get("accumulation", 1)) * int(state.get("data_size", 1))
    return int(train.get("batch_size", 1)) * int(state.get("micro_batches", usual))


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


def check_data(before: Mapping[str, Any], now: Mapping[str, Any], *, other_samples: bool = False) -> None:
    """Raise ``DataError`` when a training file is not the one that the checkpoint saw, naming it.

    Args:
        other_samples: the same files may give other samples: another tokenizer or template was accepted.
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
    if before.get("fingerprint") != now.get("fingerprint") and not other_samples:
        raise DataError(
            "the same files give other samples than before",
            fix="use the tokenizer, chat template, images, settings of `formats` and version that the checkpoint was made with",
            code=SAMPLES_CHANGED,
        )
