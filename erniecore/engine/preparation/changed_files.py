"""Whether the files and plugins that a run reads are those of the checkpoint that it continues from; its rows and settings are
compared in ``continuing.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path

from packaging.version import Version

from erniecore.engine.context import Resumption, RunContext
from erniecore.engine.fingerprint import KEY, Fingerprint
from erniecore.engine.preparation.resume import choose
from erniecore.errors import UsageError


def chosen(context: RunContext, fingerprint: Future[Fingerprint]) -> Resumption:
    """Where the run continues (``resume.choose``), with the files and plugins of that checkpoint."""
    run, hash_now, data_size = context.settings.run, context.config_hash, context.parallel_plan.data_size
    found = choose(context.out, run.resume, context.settings_json, hash_now, data_size)
    if (checkpoint := found.checkpoint) is None:
        return found
    return found.noting(*check(checkpoint.state.get(KEY), fingerprint.result(), run.accept_changes, checkpoint.path))


def check(
    before: Mapping[str, Mapping[str, str]] | None, now: Fingerprint, accepted: Collection[str], where: Path
) -> list[str]:
    """What the user should read about a run that continues from the checkpoint ``where``.

    Args:
        before: as the checkpoint has it; ``None``: it was written before there was one. accepted: parts that may have changed.
    Raises:
        UsageError: another part has changed; names every file, its old and its new hash.
    """
    if before is None:
        return [
            "the checkpoint has no run fingerprint: whether its base, tokenizer, template or plugins have changed is unknown"
        ]
    changed = {part: _changes(before.get(part, {}), now.get(part, {})) for part in sorted({*before, *now})}
    newer = (
        set() if "plugins" not in changed else {name for name, old, new in changed["plugins"] if _newer_patch(old, new)}
    )
    notes = [
        f"plugin {name} is newer: {old} -> {new}" for name, old, new in changed.get("plugins", []) if name in newer
    ]
    refused = {
        p: [c for c in found if p != "plugins" or c[0] not in newer]
        for p, found in changed.items()
        if p not in accepted
    }
    refused = {part: found for part, found in refused.items() if found}
    if refused:
        raise UsageError(
            f"{_listed(refused)} changed since the checkpoint was saved, and with that the result: {_text(refused)}",
            where=str(where),
            fix="put back what it was, choose another run.out (--out) for a new run, or accept it with "
            f"run.accept_changes=[{','.join(refused)}]",
            code="ERN-C021",
        )
    accepted_now = {part: found for part, found in changed.items() if part in accepted and found}
    return [*notes, *([f"accepted (run.accept_changes): {_text(accepted_now)}"] if accepted_now else [])]


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str, str]]:
    # weights that are gone are needed or not, which loading shows
    gone = {name for name in old if name not in new and ".safetensors" in name}
    return [(n, old.get(n, ""), new.get(n, "")) for n in sorted({*old, *new} - gone) if old.get(n) != new.get(n)]


def _newer_patch(old: str, new: str) -> bool:
    if not old or not new:
        return False
    was, now = Version(old), Version(new)
    return was.release[:2] == now.release[:2] and now > was


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _text(changed: Mapping[str, list[tuple[str, str, str]]]) -> str:
    show: Callable[[str], str] = lambda value: f"{value[:12]}…" if len(value) == 64 else value or "none"  # noqa: E731
    return "; ".join(
        f"{part} {name}: {show(old)} -> {show(new)}" for part, found in changed.items() for name, old, new in found[:8]
    )
