"""A plugin that cannot be had in a fresh process; its subject is in ``every.py``."""

from __future__ import annotations

import sys

from erniecore_conformance.toys.others import ToyServerPlugin


class Broken(ToyServerPlugin):
    """Works only where somebody imported pytest before."""


def __getattr__(name: str) -> Broken:
    if name != "plugin":
        raise AttributeError(name)
    if "pytest" not in sys.modules:
        raise ImportError("this plugin needs pytest to be imported first")
    return Broken()
