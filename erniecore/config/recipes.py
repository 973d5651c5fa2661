"""Recipes: settings of published models that a model plugin ships, chosen with ``model.size``."""

from __future__ import annotations

from importlib.resources import files

from erniecore.config.sources import Source
from erniecore.config.tree import Place, tree_of
from erniecore.config.yaml import parse
from erniecore.errors import ConfigError, nearest
from erniecore.plugin import ModelPlugin, Plugin

#: key of a recipe with the names under which hubs have models that it describes; not a setting
PUBLISHED = "published"


class RecipeSource(Source):
    """The recipe of the model that ``model.size`` names."""


def recipes(plugin: Plugin) -> dict[str, str]:
    """Recipe name -> YAML text of a model plugin."""
    if not (isinstance(plugin, ModelPlugin) and plugin.recipes):
        return {}
    found = [f for f in files(plugin.recipes).iterdir() if f.name.endswith(".yaml")]
    return {f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in found}


def recipe_source(plugin: Plugin, plugin_name: str, name: str, place: Place) -> RecipeSource:
    """A recipe, below everything that the user wrote.

    Args:
        plugin_name: of the model plugin, as it was given. name, place: the recipe, and where it was named.
    Raises:
        ConfigError: there is no such recipe.
    """
    known = recipes(plugin)
    if name not in known:
        close = nearest(name, known)
        hint = f"; did you mean {close}?" if close else ""
        names = ", ".join(sorted(known)) or "none"
        raise ConfigError(
            [place.problem("model.size", f"{plugin_name} has no recipe {name!r}{hint} (recipes: {names})")]
        )
    source = f"recipe {plugin_name}/{name}"
    recipe = tree_of(parse(known[name], source), source)
    recipe.pop(PUBLISHED, None)
    return RecipeSource(recipe)
