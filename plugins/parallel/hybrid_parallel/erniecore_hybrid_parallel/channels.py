"""Messages from one rank to another, first in, first out: what pipelines are made of. One group of two ranks per direction
and purpose keeps both ends in step. A send does not wait: on gloo, which has no such send on the CPU, a thread does it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import paddle  # noqa: TID253
import paddle.distributed as dist  # noqa: TID253
from paddle import Tensor  # noqa: TID253

from erniecore_hybrid_parallel.comm import POOR, Comm, contact, num_bytes


class Channel:
    """One direction between two ranks, of which this one is an end.

    Args:
        comm: the two ranks, the sender first.
    """

    def __init__(self, comm: Comm) -> None:
        assert comm.size == 2
        self.comm, self.source, self.target = comm, *comm.ranks
        self._sent: list[tuple[Any, Tensor]] = []
        self._waiting: queue.Queue[Tensor] = queue.Queue()
        self._failed: list[BaseException] = []
        self._thread: threading.Thread | None = None

    def send(self, tensor: Tensor) -> None:
        """Does not wait; ``tensor`` must not change before :meth:`flush`.

        Raises:
            EnvironmentFault: the other end is gone, perhaps since an earlier message.
        """
        tensor = tensor.detach().contiguous()
        if self.comm.backend not in POOR:
            with self.comm.together("hand over", num_bytes(tensor)):
                self._sent.append((dist.isend(tensor, self.target, group=self.comm.group), tensor))
            return
        self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"send-{self.target}", daemon=True)
            self._thread.start()
        self._waiting.put(tensor)

    def receive(self, shape: Sequence[int], dtype: Any) -> Tensor:
        """The next message; waits for it.

        Raises:
            EnvironmentFault: the other end is gone.
        """
        tensor = paddle.empty(list(shape), dtype)
        with self.comm.together("hand over", 0):
            dist.recv(tensor, self.source, group=self.comm.group)
        return tensor

    def flush(self) -> None:
        """Wait until everything has been sent; raises as :meth:`send`."""
        for task, _ in self._sent:
            with contact("send"):
                task.wait()
        self._sent.clear()
        if self._thread is not None:
            self._waiting.join()
            self._raise()

    def _work(self) -> None:
        while True:
            tensor = self._waiting.get()
            try:
                if not self._failed:
                    with self.comm.together("hand over", num_bytes(tensor)):
                        dist.send(tensor, self.target, group=self.comm.group)
            except BaseException as error:
                self._failed.append(error)
            finally:
                del tensor
                self._waiting.task_done()

    def _raise(self) -> None:
        if self._failed:
            raise self._failed[0]
