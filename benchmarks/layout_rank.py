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


def grown(cluster: Any, words: Sequence[str]) -> list[int]:
    """In each process: the run; most bytes that tensors held, and that the process had."""
    import erniecore
    from erniecore.builtin.cpu import plugin

    erniecore.run(overrides=words, console="none")
    device: Any = plugin.ernie_open_device(config=plugin.Config(), cluster=cluster)
    return [device.peak_tensors(), device.peak_memory()]
