"""What paddle remarks when it is imported, and nobody here has a use for. Imports nothing itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_paddle() -> Iterator[None]:
    """Around an import that may be the first one of paddle: its remark on building extensions is left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="No ccache found")
        yield
