"""Whether a run fits into the memory that is left: a run that cannot must not start, since the system would kill it hours
later, and without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from erniecore_system.memory import host_memory
from erniecore_system.units import counted, size_text

from erniecore.errors import MemoryFault
from erniecore.types.planning import Plan

if TYPE_CHECKING:
    from erniecore.engine.context import RunContext

#: resident memory of a process that has imported paddle and has no tensor yet, on Linux x86-64
PROCESS = 320 << 20
#: remedies that an error names
_MOST = 3


def check_room(context: RunContext, again: Callable[[Sequence[str]], Plan], *, force: bool = False) -> str:
    """What to warn of where the run is larger than the memory that is left, and is to start all the same; else empty.

    Only devices whose memory is the host's are checked: others say how much they have once they are open.

    Args:
        again: the plan of the same run with further settings. force: start in any case.

    Raises:
        MemoryFault: the processes of the run on this machine will need more than it can give; names the changes that help,
            in the order of what they cost.
    """
    memory = host_memory() if context.device.is_host else None
    if memory is None or context.cluster.world_size > 1 == context.num_processes:  # a rank: its launcher has looked
        return ""
    needed = _needed(context.plan, context.num_processes)
    if needed <= memory.available:
        return ""
    processes = f" in {counted(context.num_processes, 'process')}" if context.num_processes > 1 else ""
    says = f"about {size_text(needed)}{processes}"
    if force:
        left = size_text(memory.available)
        return f"the run needs {says}, and {left} are available: the system may kill it (it starts because of --force)"
    from erniecore.engine.preparation.smaller_runs import smaller_runs

    count = context.num_processes
    changes = list(smaller_runs(context.settings, context.device, needed, lambda words: _needed(again(words), count)))
    first = next((i for i, (_, size) in enumerate(changes) if size <= memory.available), 0)
    chosen = (
        changes[:_MOST] if first < _MOST else [*changes[: _MOST - 1], changes[first]]
    )  # one that is enough is among them
    remedy = ", or ".join(f"{words} ({size_text(size)})" for words, size in chosen) or "take a smaller model"
    raise MemoryFault(
        "the run does not fit into memory",
        where=context.device.name,
        found=says,
        expected=f"at most {size_text(memory.available)}, which are available",
        fix=f"{remedy}; --force starts it all the same",
    )


def _needed(plan: Plan, processes: int) -> int:
    """Bytes of all processes: the peak of the forecast, or without one the states that are certain."""
    peak = plan.forecast.peak_memory if plan.forecast else None
    return processes * ((peak or plan.memory) + PROCESS)
