"""Writing one process's files of a checkpoint in a thread, from arrays that are handed over one after the other. Which
files, and what is in them, was decided before (``write_plan.py``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from erniecore_errors import CheckpointError, NumericsError

from erniecore_checkpoint.files import translated
from erniecore_checkpoint.safetensors_write import SafetensorsFile, WrittenFile
from erniecore_checkpoint.tensors import Array, Tensor
from erniecore_checkpoint.write_plan import PlannedFile
from erniecore_checkpoint.writer import SAVING


class Aborted(Exception):
    """The writing was given up because another process failed."""


class PartWriter:
    """Files that are being written. Arrays must come in the order of :attr:`order`.

    Args:
        directory: of the unfinished checkpoint. files: of this process. executor: whose thread writes.
        limit: bytes that may wait to be written before :meth:`put` waits; ``None``: all of them.
    """

    def __init__(
        self, directory: Path, files: Sequence[PlannedFile], executor: Executor, limit: int | None = None
    ) -> None:
        self._directory, self._files, self._limit = directory, files, limit
        self._waiting, self._size, self._aborted = deque[Array](), 0, False
        self._changed = threading.Condition()
        self._result: Future[list[WrittenFile]] = executor.submit(self._write)
        self._result.add_done_callback(self._wake)

    def put(self, array: Array) -> None:
        """The next array, which must not be changed afterwards. Dropped if the writing has failed."""
        with self._changed:
            while self._limit is not None and self._size and self._size + array.nbytes > self._limit:
                if self._result.done():
                    return
                self._changed.wait(1.0)
            self._waiting.append(array)
            self._size += array.nbytes
            self._changed.notify_all()

    def abort(self) -> None:
        """Stop soon; the files stay unfinished."""
        with self._changed:
            self._aborted = True
            self._waiting.clear()
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until the files are written or the writing has failed, but not longer."""
        with self._changed:
            self._changed.wait_for(self._result.done, seconds)

    @property
    def busy(self) -> bool:
        """Whether it goes on."""
        return not self._result.done()

    @property
    def error(self) -> CheckpointError | NumericsError | None:
        """Why it failed, once it has; errors that are bugs are raised."""
        if self.busy:
            return None
        try:
            self._result.result()
        except Aborted:
            return CheckpointError("given up because another process failed", where=str(self._directory))
        except (CheckpointError, NumericsError) as error:
            return error
        return None

    @property
    def files(self) -> list[WrittenFile]:
        """What was written, on the disk."""
        return self._result.result()

    def _wake(self, _: object) -> None:
        with self._changed:
            self._changed.notify_all()

    def _take(self) -> Array:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._aborted)
            if self._aborted:
                raise Aborted
            array = self._waiting.popleft()
            self._size -= array.nbytes
            self._changed.notify_all()
        return array

    def _write(self) -> list[WrittenFile]:
        with translated(self._directory, *SAVING):
            if self._files and not self._directory.is_dir():
                raise CheckpointError(
                    "the unfinished checkpoint that rank 0 began is not seen by another process",
                    where=str(self._directory),
                    fix="`run.out` must be in a file system that all machines share",
                )
            return [self._write_file(planned) for planned in self._files]

    def _write_file(self, planned: PlannedFile) -> WrittenFile:
        file = SafetensorsFile(self._directory / planned.name, planned.tensors, by_tensor=True)
        try:
            for name in file.order:
                dtype, shape = planned.tensors[name]
                file.add(name, Tensor(dtype, shape, self._take))
            return file.finish()
        finally:
            file.close()
