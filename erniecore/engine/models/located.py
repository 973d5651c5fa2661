"""Which model a path means: a model directory, a run, its checkpoints, or an adapter with its base. Reads no tensor and imports
no paddle."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from erniecore_checkpoint.directories import QUANTIZED_DIRECTORY

from erniecore.errors import UsageError, nearest


class Located(NamedTuple):
    """Where a model is: a model directory, or a checkpoint; notes on the choice; an adapter that goes onto it."""

    path: Path
    is_checkpoint: bool
    notes: list[str]
    adapter: Path | None = None

    def with_adapter(self, source: Path) -> Located:
        """The same under the adapter in ``source``: its directory, or a run. Raises ``UsageError`` when there is none."""
        from erniecore.engine.models.adapters import adapter_directory

        return self._replace(adapter=adapter_directory(source))

    @property
    def tokenizer_home(self) -> Path:
        """Where tokenizer and chat template are: with the adapter that was trained with them, else with the model."""
        from erniecore.engine.models.adapters import tokenizer_home

        return self.path if self.adapter is None else tokenizer_home(self.adapter, self.path)


def locate(source: Path) -> Located:
    """The model that ``source`` means; reads no tensor and imports no paddle.

    Args:
        source: a model directory, a run directory (its ``model/`` or its ``adapter/`` and the base of that, else its
            newest verified checkpoint), a directory of checkpoints, or one checkpoint.

    Raises:
        UsageError: ``source`` is none of these, or does not exist.
    """
    from erniecore_checkpoint.manifest import MANIFEST_NAME
    from erniecore_checkpoint.reader import newest_verified

    from erniecore.engine.models.adapters import base_notes, base_of, find_adapter

    if not source.is_dir():
        siblings = [p.name for p in source.absolute().parent.glob("*") if p.is_dir()]
        close = nearest(source.name, siblings)
        fix = f"did you mean {source.parent / close}?" if close else "name a model directory, a run or a checkpoint"
        raise UsageError("no such directory", where=str(source), fix=fix)
    if (source / "config.json").is_file():
        return Located(source, False, [])
    if (source / MANIFEST_NAME).is_file():
        return Located(source, True, [])
    if (source / "model" / "config.json").is_file():
        notes, codes = [f"using the run's finished model {source / 'model'}"], source / QUANTIZED_DIRECTORY
        if codes.is_dir():
            notes.append(f"its weights are not rounded; {codes} computes as it was trained")
        return Located(source / "model", False, notes)
    adapter = find_adapter(source)
    if adapter is not None:
        base = base_of(adapter)
        return Located(base, False, [f"using adapter {adapter} on {base}", *base_notes(adapter, base)], adapter)
    path, notes = newest_verified(source / "ckpt" if (source / "ckpt").is_dir() else source)
    if path is None:
        raise UsageError(
            "this is neither a model directory, nor a run, nor a checkpoint",
            where=str(source),
            found="; ".join(notes),
            expected="a directory with config.json, with ckpt/, or ckpt/step-…",
        )
    return Located(path, True, [*notes, f"using checkpoint {path}"])
