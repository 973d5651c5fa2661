"""Changes of settings with which a run needs less memory, for a run that does not fit and for one that met the end of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from erniecore.errors import ErnieError

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings
    from erniecore.types.run import Device


def smaller_runs(
    settings: RunSettings, device: Device, needed: int, needed_with: Callable[[Sequence[str]], int]
) -> Iterator[tuple[str, int]]:
    """(settings, bytes needed with them) of changes that save at least a fiftieth, cheapest first.

    Args:
        needed: bytes of the run as it is. needed_with: of the run with further settings; raises ``ErnieError`` where it
            cannot have them.
    """
    for words in changes(settings, device):
        try:
            size = needed_with(words)
        except ErnieError:
            continue
        if size < 0.98 * needed:
            yield " ".join(words), size


def changes(settings: RunSettings, device: Device) -> Iterator[tuple[str, ...]]:
    """What the settings do not do yet: changes that cost time alone first, then those that change what is trained on, then
    what is trained."""
    train, data = settings.train, settings.data
    recompute = () if train.recompute == "full" else ("train.recompute=full",)
    rows = train.batch_size * train.accumulation
    one_row = () if train.batch_size == 1 else ("train.batch_size=1", f"train.accumulation={rows}")
    if recompute:
        yield recompute
    if one_row:
        yield one_row
    if one_row and recompute:
        yield *one_row, *recompute
    if "host-offload" not in device.lacks and not settings.optimizer.offload:
        yield ("optimizer.offload=true",)
    if data.max_seq_len > 1024:
        yield (f"data.max_seq_len={data.max_seq_len // 2}",)
    adapter = () if settings.adapter else ("adapter=lora",)
    if adapter:
        yield adapter
    if settings.quantizer is None:
        yield *adapter, "quantizer=wint8"
        yield *adapter, "quantizer=wint4"
