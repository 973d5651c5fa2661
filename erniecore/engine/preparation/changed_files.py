"""Whether the files and plugins that a run reads are those of the checkpoint that it continues from; its rows and settings are
compared in ``continuing.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path

from erniecore_system.contents import Fingerprint, differences

from erniecore.engine.context import Resumption, RunContext
from erniecore.engine.fingerprint import KEY
from erniecore.engine.preparation.resume import choose
from erniecore.errors import UsageError


def chosen(context: RunContext, fingerprint: Future[Fingerprint]) -> Resumption:
    """Where the run continues (``resume.choose``), with the files and plugins of that checkpoint."""
    run = context.settings.run
    found = choose(context.out, run.resume, context.settings_json, context.rows)
    if (checkpoint := found.checkpoint) is None:
        return found
    return found.noting(*check(checkpoint.state.get(KEY), fingerprint.result(), run.accept_changes, checkpoint.path))


def check(
    before: Mapping[str, Mapping[str, str]] | None, now: Fingerprint, accepted: Collection[str], where: Path
) -> list[str]:
    """What the user should read about a run that continues from ``where``, whose checkpoint has the fingerprint ``before``
    (``None``: an earlier version wrote it). Raises ``UsageError`` where a part has changed that is not ``accepted``."""
    if before is None:
        return [
            "the checkpoint has no run fingerprint: whether base, tokenizer, template or plugins have changed is unknown"
        ]
    refused, notes = differences(before, now, accepted)
    if refused:
        raise UsageError(
            f"{', '.join(refused)} changed since the checkpoint was saved, and with that the result: "
            + "; ".join(refused.values()),
            where=str(where),
            fix="put back what it was, choose another run.out (--out) for a new run, or accept it with "
            f"run.accept_changes=[{','.join(refused)}]",
            code="ERN-C021",
        )
    return notes
