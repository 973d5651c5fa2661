"""Importing Paddle for the first time: without its warning about ccache, and with our signal handlers kept."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from erniecore.signals import guarding_import


@contextmanager
def importing_paddle() -> Iterator[None]:
    """Suppress Paddle's warning about ccache and keep the process's signal handlers (``erniecore.signals``); wrap any import
    that may be the first of paddle."""
    with guarding_import(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield
