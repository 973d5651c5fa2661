"""An error of the device's runtime as what it is: no memory left, with what was planned, what was held, and what to change.
Paddle raises different types for it, and of plug-in devices only says that their library refused something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore.errors import MemoryFault, first_line, says_out_of_memory
from erniecore.units import size_text

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared

#: what Paddle says when the library of a plug-in device refuses a call, whichever it was
REFUSED = "CustomDevice error"
#: bytes that are asked for where nothing was planned
BLOCK = 64 << 20


def memory_fault(ready: Prepared, error: Exception) -> MemoryFault | None:
    """What ends the run instead of ``error``; None if it is about something else."""
    if not says_out_of_memory(error) and not (REFUSED in str(error) and card_is_full(ready)):
        return None
    planned, _ = ready.forecast
    memory = ready.device.describe().get("memory", "")
    found = [f"tensors held {size_text(held(ready))}"] + ([f"of {memory}"] if memory else [])
    found += [f"planned {size_text(planned)}" if planned else "no plan for this layout", first_line(error)]
    return MemoryFault("out of memory", where=ready.device.name, found="; ".join(found), fix=remedy(ready))


def held(ready: Prepared) -> int:
    """Most bytes that tensors held so far."""
    device = ready.device
    return int(getattr(device, "peak_tensors", device.peak_memory)())


def card_is_full(ready: Prepared) -> bool:
    """Whether the card refuses what the plan would still need."""
    import paddle

    planned, _ = ready.forecast
    wanted = max(BLOCK, (planned or 0) - held(ready))
    try:
        paddle.empty([wanted], dtype="uint8")
    except (OSError, RuntimeError, MemoryError):
        return True
    return False


def remedy(ready: Prepared) -> str:
    """What the settings do not do yet, cheapest first."""
    train, data = ready.settings.train, ready.settings.data
    ways = []
    if train.batch_size > 1:
        ways.append(f"lower train.batch_size ({train.batch_size}) and raise train.accumulation")
    if train.recompute != "full":
        ways.append("set train.recompute=full")
    ways.append(f"lower data.max_seq_len ({data.max_seq_len})")
    if ready.settings.adapter is None:
        ways.append("train an adapter (--adapter lora)")
    if "host-offload" not in getattr(ready.device, "lacks", {}) and not train.optimizer_offload:
        ways.append("set train.optimizer_offload=true")
    return ", or ".join(ways) + "; `ernie plan` says what each saves"
