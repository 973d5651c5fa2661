"""Whether the files and plugins that a run reads are those of the checkpoint that it continues from; its rows and settings are
compared in ``continuing.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    """What the user should read about a run that continues from ``where``, whose checkpoint has the fingerprint ``before``
    (``None``: an earlier version wrote it). Raises ``UsageError`` where a part has changed that is not ``accepted``."""
    if before is None:
        return [
            "the checkpoint has no run fingerprint: whether base, tokenizer, template or plugins have changed is unknown"
        ]
    changed = {part: _changes(before.get(part, {}), now.get(part, {})) for part in sorted({*before, *now})}
    newer = [found for found in changed.get("plugins", []) if _is_newer_patch(*found[1:])]
    changed["plugins"] = [found for found in changed.get("plugins", []) if found not in newer]
    refused = {part: found for part, found in changed.items() if found and part not in accepted}
    if refused:
        raise UsageError(
            f"{', '.join(refused)} changed since the checkpoint was saved, and with that the result: {_text(refused)}",
            where=str(where),
            fix="put back what it was, choose another run.out (--out) for a new run, or accept it with "
            f"run.accept_changes=[{','.join(refused)}]",
            code="ERN-C021",
        )
    notes = [f"plugin {name} is newer: {old} -> {new}" for name, old, new in newer]
    return [*notes, *([f"accepted (run.accept_changes): {text}"] if (text := _text(changed)) else [])]


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(name, old, new); weights that are gone are needed or not, which loading shows."""
    names = sorted({*old, *new} - {name for name in old if name not in new and ".safetensors" in name})
    return [(name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name)]


def _is_newer_patch(old: str, new: str) -> bool:
    was, now = (Version(version or "0") for version in (old, new))
    return bool(old) and was.release[:2] == now.release[:2] and now > was


def _text(changed: Mapping[str, list[tuple[str, str, str]]]) -> str:
    every = [(f"{part} {name}", old, new) for part, found in changed.items() for name, old, new in found[:8]]
    return "; ".join(f"{name}: {_short(old)} -> {_short(new)}" for name, old, new in every)


def _short(value: str) -> str:
    return f"{value[:12]}…" if len(value) == 64 else value or "none"
