"""All samples once, for what an objective does before the first step of a session. Not part of any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from erniecore.errors import Preempted
from erniecore.signals import told
from erniecore.types.samples import Batch

if TYPE_CHECKING:
    from erniecore.engine.training.run_data import RunData


def every_sample(data: RunData, size: int, stop_reason: Callable[[], str]) -> Iterator[Batch]:
    """Every sample of both splits once, on every rank, in batches of ``size``.

    Raises:
        Preempted: asked to stop; there is nothing to save.
    """
    for loader in (data.train, data.eval):
        if loader is None:
            continue
        for start in range(0, len(loader.dataset), size):
            if reason := stop_reason():  # of any rank: the passes of a model may need all of them
                raise Preempted(f"{told(reason)} before the first step of this session", fix="run it again")
            yield loader.batch_of(range(start, min(start + size, len(loader.dataset))))
