"""A plugin module that cannot be imported in a fresh process; its subject is in ``every.py``."""

from __future__ import annotations

import sys

from erniecore.testing.toys.others import ToyServerPlugin


class Broken(ToyServerPlugin):
    """Works only where somebody imported pytest before."""


if "pytest" not in sys.modules:
    raise ImportError("this module needs pytest to be imported first")
plugin = Broken()
