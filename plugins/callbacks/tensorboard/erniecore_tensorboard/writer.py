"""An event file of TensorBoard, in tensorboardX's format. Written by the thread that logs: ``SummaryWriter`` hands events to a
thread of its own, and its ``flush`` does not wait for it, so that a killed run would lose points before a checkpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore_curves import Writer
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar, text


class EventFile(Writer):
    """One session of a run. TensorBoard joins the files of a directory; the first event of a session that continues drops the
    points of earlier sessions from its first step on.

    Args:
        directory: of all sessions; made when missing. step: steps done before this session. settings: shown as text.
    """

    def __init__(self, directory: Path, step: int, settings: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # the name has the second, in which an earlier session may have begun
        self._file = EventsWriter(str(directory / "events"), f".{os.getpid()}.{step:08d}")
        if step:
            self._write(step + 1, session_log=SessionLog(status=SessionLog.START))
        self._write(step, summary=text("settings", f"```json\n{settings}\n```"))

    def _write(self, step: int, **content: Any) -> None:
        self._file.write_event(Event(wall_time=time.time(), step=step, **content))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar per curve."""
        for name, value in values.items():
            self._write(step, summary=scalar(name, value))

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()
