"""A plugin module that imports numpy at once; its subject is in ``every.py``."""

from __future__ import annotations

import numpy as np

from erniecore_conformance.toys.others import ToyServerPlugin


class Heavy(ToyServerPlugin):
    """Imports numpy with its module."""

    pi = float(np.pi)


plugin = Heavy()
