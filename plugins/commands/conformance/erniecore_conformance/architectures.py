"""The tiny architecture with which a model plugin is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_conformance.expect import NotApplicable
from erniecore_conformance.subjects import Subject

if TYPE_CHECKING:
    from erniecore.api import Json


def architecture_of(subject: Subject) -> tuple[Any, Json]:
    """The settings and tiny architecture that a model plugin is checked with."""
    offered = getattr(subject.plugin, "conformance_architecture", None)
    if offered is not None:
        return subject.config(), offered()
    recipe = _tiny_recipe(subject)
    config = subject.config(**recipe)
    return config, subject.call("ernie_read_architecture", config=config)


def _tiny_recipe(subject: Subject) -> dict[str, Any]:
    """The ``model`` section of the plugin's recipe ``tiny``, without ``name`` and ``size``."""
    from importlib.resources import files

    import yaml

    package = getattr(subject.plugin, "recipes", "")
    if not package:
        raise NotApplicable("the plugin offers neither conformance_architecture() nor a recipe `tiny`")
    recipe = yaml.safe_load(files(package).joinpath("tiny.yaml").read_text(encoding="utf-8"))
    section: dict[str, Any] = {k: v for k, v in recipe["model"].items() if k not in ("name", "size")}
    return section
