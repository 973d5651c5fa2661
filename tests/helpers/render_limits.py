"""Limits of the process that renders templates which are reached soon."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from erniecore_text import render_process


@contextmanager
def small_limits() -> Iterator[None]:
    """In the block, a rendering has 0.3 s and 256 MiB; a process that was started with other limits is ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render_process, "SECONDS", 0.3)
        patch.setattr(render_process, "MEMORY", 256 << 20)
        render_process._keeper.end()
        yield
        render_process._keeper.end()
