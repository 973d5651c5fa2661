"""A published model whose directory is not here: its recipe stands in for a plan; a run says what to fetch.

Imported files name models as hubs do (``baidu/ERNIE-4.5-0.3B-Paddle``). Nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.config import yaml
from erniecore.config.selection import recipes
from erniecore.errors import CheckpointError
from erniecore.migration.erniekit.convert_model import published

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded


def absent(loaded: Loaded) -> str:
    """The ``model.path`` that is the name of a published model and no directory here; else empty."""
    path = str(getattr(loaded.settings.model, "path", ""))
    return path if path and not Path(path).is_dir() and published(path) is not None else ""


def plannable(loaded: Loaded) -> tuple[Loaded, str]:
    """Settings whose model can be planned, and a remark if its recipe stands in for the directory."""
    path = absent(loaded)
    model = published(path) if path else None
    known = recipes(loaded.plugins["model"]) if path else {}
    if model is None or model.size not in known:
        return loaded, ""
    source = f"recipe {loaded.settings.plugins['model']}/{model.size}"
    recipe = yaml.parse(known[model.size], source).data["model"]["architecture"]
    section = loaded.settings.model
    architecture = {**recipe, **getattr(section, "architecture", {})}
    section = section.model_copy(update={"path": "", "architecture": architecture})
    settings = loaded.settings.model_copy(update={"model": section})
    remark = f"there is no directory {path} here: this is the plan of the {source}; a run needs the directory"
    return replace(loaded, settings=settings), remark


def require_directory(loaded: Loaded) -> None:
    """Raise ``CheckpointError`` for the name of a published model that is no directory here."""
    path = absent(loaded)
    if path:
        raise CheckpointError(
            "no such model directory, and nothing is downloaded",
            where=f"{loaded.provenance.get('model.path', 'settings')}: model.path",
            found=path,
            fix=f"fetch {path} (config.json, safetensors, tokenizer), then model.path=DIR; --dry-run works without it",
            code="ERN-K020",
        )
