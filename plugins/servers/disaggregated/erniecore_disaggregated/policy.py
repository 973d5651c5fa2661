"""Which process gets a prompt and which one decodes it: pure functions over what is known of the processes. The router and the
simulator both call them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["prefill", "decode"]
Status = Literal["starting", "open", "draining", "lost"]
Policy = Literal["prefix", "load"]
#: Prompts that one process has at a time: the one that it computes, and the next one. Others stay with the router, which
#: knows more when their turn comes.
PROMPTS_EACH = 2
#: Blocks of prompts that the router remembers for each process.
_MOST_BLOCKS = 1 << 16


class PrefixIndex:
    """The blocks of prompts that a process has computed lately, by the keys of its prefix cache. An estimate: the process
    may have dropped some.

    Args:
        block: tokens of a block.
    """

    def __init__(self, block: int, most: int = _MOST_BLOCKS) -> None:
        self.block, self._most = block, most
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        """Blocks that are remembered."""
        return len(self._keys)

    def hits(self, keys: Sequence[bytes]) -> int:
        """Tokens of the longest beginning that is there; ``keys``: of the prompt's blocks."""
        for number, key in enumerate(keys):
            if key not in self._keys:
                return number * self.block
        return len(keys) * self.block

    def add(self, keys: Iterable[bytes]) -> None:
        """The process computes this prompt."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """The process is a new one."""
        self._keys.clear()


@dataclass(slots=True)
class WorkerState:
    """What the router knows of a process.

    Attributes:
        role, epoch: since its last change of role. rows: completions that it decodes together.
        prompts: prompts that it has to compute. queued_tokens: tokens of them that are not in its prefix cache.
        completions: rows that it decodes, or will when their prompts are computed. kv_tokens: of them.
    """

    name: str
    role: Role
    epoch: int = 0
    status: Status = "starting"
    rows: int = 8
    prompts: int = 0
    queued_tokens: int = 0
    completions: int = 0
    kv_tokens: int = 0
    prefix: PrefixIndex = field(default_factory=lambda: PrefixIndex(16))


def usable(workers: Iterable[WorkerState], role: Role) -> list[WorkerState]:
    """Those of a role that take something new."""
    return [worker for worker in workers if worker.role == role and worker.status == "open"]


def choose_prefill(
    workers: Iterable[WorkerState], keys: Sequence[bytes], tokens: int, policy: Policy
) -> WorkerState | None:
    """Where a prompt is computed: where it is done first, if every token takes as long.

    With the policy ``prefix``, tokens that a process has in its prefix cache take no time. None: all have enough to do.
    """
    free = [worker for worker in usable(workers, "prefill") if worker.prompts < PROMPTS_EACH]

    def cost(worker: WorkerState) -> tuple[int, int, str]:
        cached = worker.prefix.hits(keys) if policy == "prefix" else 0
        return worker.queued_tokens + tokens - min(cached, tokens), worker.prompts, worker.name

    return min(free, key=cost, default=None)


def choose_decode(workers: Iterable[WorkerState]) -> WorkerState | None:
    """Where a completion is decoded: where most rows are free, and of equal ones where the caches are shortest. None: all
    rows are taken, and as many prompts again wait behind them as a process computes at a time."""
    free = [w for w in usable(workers, "decode") if w.completions < w.rows + PROMPTS_EACH]
    return min(free, key=lambda w: (w.completions / w.rows, w.kv_tokens, w.name), default=None)


def may_switch(workers: Iterable[WorkerState], name: str) -> str:
    """Why a process keeps its role; empty: it may change it. The last one of a role never does."""
    by_name = {worker.name: worker for worker in workers}
    worker = by_name[name]
    if worker.status not in ("open", "draining"):
        return f"{name} is {worker.status}"
    others = [other for other in usable(by_name.values(), worker.role) if other.name != name]
    return "" if others else f"{name} is the last one that is open for {worker.role}"


def least_busy(workers: Iterable[WorkerState], role: Role) -> WorkerState | None:
    """The one of a role that is drained first."""
    return min(usable(workers, role), key=lambda w: (w.prompts + w.completions, w.queued_tokens, w.name), default=None)
