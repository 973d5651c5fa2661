"""What each process of ``layouts.py`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def ran(cluster: Any, words: Sequence[str]) -> list[Any]:
    """In each process: the run; the most bytes that tensors held, or the error."""
    from paddle.base import core

    import erniecore
    from erniecore.errors import ErnieError

    try:
        erniecore.run(overrides=words, console="none")
    except ErnieError as error:
        return [0, str(error)]
    return [int(core.host_memory_stat_peak_value("Allocated", 0)), ""]
