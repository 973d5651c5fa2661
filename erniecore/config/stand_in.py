"""A published model whose directory is not here: its recipe stands in for a plan; a run says what to fetch.

Hubs name models ``baidu/ERNIE-4.5-0.3B-Paddle``; a recipe lists such names under ``published``. Nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.config import yaml
from erniecore.config.selection import PUBLISHED, recipes
from erniecore.errors import CheckpointError

if TYPE_CHECKING:
    from erniecore.config.compose import Loaded


def plannable(loaded: Loaded) -> tuple[Loaded, str]:
    """Settings whose model can be planned, and a note if a recipe stands in for its directory."""
    path = _absent(loaded)
    name, recipe = _recipe(loaded, path) if path else ("", {})
    if not name:
        return loaded, ""
    section = loaded.settings.model
    architecture = {**recipe["model"]["architecture"], **section.architecture}
    section = section.model_copy(update={"path": "", "architecture": architecture})
    settings = loaded.settings.model_copy(update={"model": section})
    source = f"recipe {loaded.settings.plugins['model']}/{name}"
    note = f"there is no directory {path} here: this is the plan of the {source}; a run needs the directory"
    return replace(loaded, settings=settings), note


def require_directory(loaded: Loaded) -> None:
    """Raise ``CheckpointError`` for a ``model.path`` that is no directory."""
    path = _absent(loaded)
    if path:
        works = "; --dry-run works without it" if _recipe(loaded, path)[0] else ""
        raise CheckpointError(
            "no such model directory, and nothing is downloaded",
            where=f"{loaded.provenance.get('model.path', 'settings')}: model.path",
            found=path,
            fix=f"fetch {path} (config.json, safetensors, tokenizer), then model.path=DIR{works}",
            code="ERN-K020",
        )


def _absent(loaded: Loaded) -> str:
    """The ``model.path`` that is no directory here; else empty."""
    path = loaded.settings.model.path
    return path if path and not Path(path).is_dir() else ""


def _recipe(loaded: Loaded, path: str) -> tuple[str, dict[str, Any]]:
    """Name and content of the recipe of the chosen model plugin that describes a published model; empty: none does."""
    published = Path(path).name.lower()
    for name, text in recipes(loaded.plugins["model"]).items():
        recipe = yaml.parse(text, f"recipe {name}").data
        if published in (other.lower() for other in recipe.get(PUBLISHED, ())):
            return name, recipe
    return "", {}
