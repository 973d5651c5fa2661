"""Suppresses a warning that Paddle emits on import. Imports nothing itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_paddle() -> Iterator[None]:
    """Suppress Paddle's warning about ccache; wrap any import that may be the first of paddle."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield
