"""Code of our distributions that may be left out, and that is no plugin: found by import and not by name."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from erniecore_catalog import install_command

from erniecore.errors import PluginNotFound


def library(module: str, wanted: str) -> ModuleType:
    """A module of such a distribution.

    Args:
        wanted: what needs it, for the error. Raises ``PluginNotFound`` where it is not installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        home = package.replace("_", "-")
        raise PluginNotFound(f"{wanted} comes with {home}", next=install_command(home)) from error
