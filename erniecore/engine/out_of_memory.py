"""An error of the device's runtime as what it is: no memory left, with what was planned, what was used, and what to change.
Paddle raises different types for it, and of plug-in devices only says that their library refused something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from erniecore_system.units import size_text

from erniecore.engine.preparation.smaller_runs import changes
from erniecore.errors import MemoryFault, first_line, says_out_of_memory
from erniecore.types.run import Device

if TYPE_CHECKING:
    from erniecore.config.settings import RunSettings

#: what Paddle says when the library of a plug-in device refuses a call, whichever it was
REFUSED = "CustomDevice error"
#: bytes that are asked for where nothing was planned
BLOCK = 64 << 20


def memory_fault(error: Exception, device: Device, planned: int | None, settings: RunSettings) -> MemoryFault | None:
    """What ends the run instead of ``error``; None if it is about something else.

    Args:
        planned: most bytes of tensors by the plan; None: no forecast.
    """
    if not says_out_of_memory(error) and not (REFUSED in str(error) and device_is_full(device, planned)):
        return None
    memory = device.describe().get("memory", "")
    found = [f"tensors held {size_text(device.peak_tensors())}"] + ([f"of {memory}"] if memory else [])
    found += [f"planned {size_text(planned)}" if planned else "no forecast of the peak", first_line(error)]
    ways = ", or ".join(" ".join(words) for words in changes(settings, device)) or "take a smaller model"
    fix = f"{ways}; `ernie plan` says what each saves"
    return MemoryFault("out of memory", where=device.name, found="; ".join(found), fix=fix)


def device_is_full(device: Device, planned: int | None) -> bool:
    """Whether the device refuses what the plan would still need."""
    import paddle

    wanted = max(BLOCK, (planned or 0) - device.peak_tensors())
    try:
        paddle.empty([wanted], dtype="uint8")
    except (OSError, RuntimeError, MemoryError):
        return True
    return False
