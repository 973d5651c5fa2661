"""Messages and collectives that go on while a rank computes: by the streams of a backend, or, on gloo, which waits for the other
end, by a thread. Each kind of them has a group of its own, in which all ranks begin them in the same order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import paddle  # noqa: TID253
import paddle.distributed as dist  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_hybrid_parallel.comm import POOR, Comm, contact, num_bytes

T = TypeVar("T")


class Worker:
    """A thread that does one thing after the other; after a failure it does nothing more."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._todo: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()

    def start(self, work: Callable[[], T]) -> Future[T]:
        """The result of ``work``, which is done when all that was started before is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        found: Future[T] = Future()
        self._todo.put((work, found))
        return found

    def _run(self) -> None:
        failed: BaseException | None = None
        while True:
            work, found = self._todo.get()
            try:
                if failed is not None:
                    raise failed
                found.set_result(work())
            except BaseException as error:
                failed = error
                found.set_exception(error)
            del work, found  # tensors of what is done are free


class Pending:
    """Something that goes on.

    Args:
        comm: whose; it counts how long a rank waits. going: what to wait for. finish: gives the result afterwards. kept:
            tensors that must live as long.
    """

    def __init__(self, comm: Comm, going: Sequence[Any], finish: Callable[[], Tensor], kept: Sequence[Tensor]) -> None:
        self._comm, self._going, self._finish, self._kept = comm, going, finish, kept

    def done(self) -> bool:
        """Whether :meth:`wait` would not wait."""
        return all(one.done() if isinstance(one, Future) else one.is_completed() for one in self._going)

    def wait(self) -> Tensor:
        """The result.

        Raises:
            EnvironmentFault: another rank is gone.
        """
        started = time.perf_counter()
        try:
            for one in self._going:
                if isinstance(one, Future):
                    one.result()
                else:
                    with contact("waiting for a message", self._comm.others):
                        one.wait()
        finally:
            self._comm.waited += time.perf_counter() - started
        return self._finish()


class AsyncComm:
    """Collectives of a group that do not wait.

    Args:
        comm: a group that nothing else uses; of one rank, every collective is done at once.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self._worker = comm, Worker(f"collectives-{comm.ranks}")
        comm.beside = True

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncComm:
        return self

    def all_gather(self, tensor: Tensor) -> Pending:
        """[n, ...] of each rank -> [size * n, ...] in the order of ranks."""
        size, tensor = self.comm.size, tensor.contiguous()
        joined = paddle.empty([size * tensor.shape[0], *tensor.shape[1:]], tensor.dtype) if size > 1 else tensor
        return self._begin(
            "all_gather",
            num_bytes(tensor) * (size - 1),
            lambda wait: dist.stream.all_gather(joined, tensor, group=self.comm.group, sync_op=wait),
            lambda: joined,
            [tensor, joined],
        )

    def all_reduce(self, tensor: Tensor) -> Pending:
        """The sum over the group, in place; ``tensor`` is neither read nor written until then."""
        return self._begin(
            "all_reduce",
            2 * num_bytes(tensor) * (self.comm.size - 1) // self.comm.size,
            lambda wait: dist.stream.all_reduce(tensor, group=self.comm.group, sync_op=wait),
            lambda: tensor,
            [tensor],
        )

    def reduce_scatter(self, tensor: Tensor) -> Pending:
        """[size * n, ...] -> this rank's [n, ...] of the sum over the group; ``tensor`` may be overwritten."""
        tensor, length, index = tensor.contiguous(), tensor.shape[0] // self.comm.size, self.comm.index
        if self.comm.size == 1:
            return self._begin("reduce_scatter", 0, lambda wait: None, lambda: tensor, [tensor])
        if self.comm.backend in POOR:
            return self._begin(
                "all_reduce",
                2 * num_bytes(tensor) * (self.comm.size - 1) // self.comm.size,
                lambda wait: dist.stream.all_reduce(tensor, group=self.comm.group, sync_op=wait),
                lambda: tensor[index * length : (index + 1) * length].clone(),
                [tensor],
            )
        shard = paddle.empty([length, *tensor.shape[1:]], tensor.dtype)
        return self._begin(
            "reduce_scatter",
            num_bytes(tensor) * (self.comm.size - 1) // self.comm.size,
            lambda wait: dist.stream.reduce_scatter(shard, tensor, group=self.comm.group, sync_op=wait),
            lambda: shard,
            [tensor, shard],
        )

    def _begin(
        self,
        collective: str,
        amount: int,
        launch: Callable[[bool], Any],
        finish: Callable[[], Tensor],
        kept: Sequence[Tensor],
    ) -> Pending:
        comm = self.comm
        if comm.size == 1:
            return Pending(comm, [], finish, kept)
        if comm.backend in POOR:

            def work() -> None:
                with comm.together(collective, amount):
                    launch(True)

            return Pending(comm, [self._worker.start(work)], finish, kept)
        with comm.together(collective, amount):
            task = launch(False)
        return Pending(comm, [task], finish, kept)
