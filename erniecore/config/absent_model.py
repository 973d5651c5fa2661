"""A ``model.path`` that is not a local directory. A plan uses the recipe of the published model instead; a run fails and says
what to download.

Model hubs use names such as ``baidu/ERNIE-4.5-0.3B-Paddle``; recipes list them under ``published``. Nothing is downloaded.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.config import yaml
from erniecore.config.recipes import PUBLISHED, recipes
from erniecore.errors import CheckpointError

if TYPE_CHECKING:
    from erniecore.config.compose import LoadedSettings


def plannable(loaded: LoadedSettings) -> tuple[LoadedSettings, str]:
    """Settings whose model can be planned, and a note if they use a recipe in place of the missing directory."""
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


def require_directory(loaded: LoadedSettings) -> None:
    """Raise ``CheckpointError`` if ``model.path`` is set and is not a directory."""
    path = _absent(loaded)
    if path:
        name = Path(path).name
        works = "; --dry-run works without it" if _recipe(loaded, path)[0] else ""
        raise CheckpointError(
            "no such model directory, and nothing is downloaded",
            where=f"{loaded.provenance.get('model.path', 'settings')}: model.path",
            found=path,
            fix=f"fetch {path} (config.json, safetensors, tokenizer) into {name}, then model.path={name}{works}",
            code="ERN-K020",
        )


def _absent(loaded: LoadedSettings) -> str:
    """``model.path`` if it is not a local directory, else empty."""
    path = loaded.settings.model.path
    return path if path and not os.path.isdir(path) else ""


def _recipe(loaded: LoadedSettings, path: str) -> tuple[str, dict[str, Any]]:
    """Name and content of the model plugin's recipe for a published model; empty if there is none."""
    published = Path(path).name.lower()
    for name, text in recipes(loaded.plugins["model"]).items():
        recipe = yaml.parse(text, f"recipe {name}").data
        if published in (other.lower() for other in recipe.get(PUBLISHED, ())):
            return name, recipe
    return "", {}
