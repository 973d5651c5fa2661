"""An event file of TensorBoard, written by tensorboardX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from erniecore_curves import Writer
from tensorboardX import SummaryWriter


class EventFile(Writer):
    """One session of a run. TensorBoard joins the files of a directory; the first event of a session that continues drops the
    points of earlier sessions from its first step on.

    Args:
        directory: of all sessions; made when missing. step: steps done before this session. settings: shown as text.
    """

    def __init__(self, directory: Path, step: int, settings: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        first = step + 1 if step else None
        # the name has the second, in which an earlier session may have begun
        own = f".{os.getpid()}.{step:08d}"
        self._writer = SummaryWriter(str(directory), purge_step=first, flush_secs=5, filename_suffix=own)
        self._writer.add_text("settings", f"```json\n{settings}\n```", step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar per curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Hand what is buffered to the operating system."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
