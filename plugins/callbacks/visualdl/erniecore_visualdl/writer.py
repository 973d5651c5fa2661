"""A session of a run as VisualDL records.

VisualDL shows the newest file of a directory only, so a run that continues writes into ``from-step-N`` beside
the first part: the board shows both parts as two runs whose curves join.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from erniecore_curves import Writer, undisturbed
from visualdl import LogWriter  # noqa: TID253


class Records(Writer):
    """An open file of records.

    Args:
        directory: of this session; made when missing. step: steps done before it. settings: shown as text.
    """

    def __init__(self, directory: Path, step: int, settings: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        with undisturbed():  # visualdl prints text
            self._file = LogWriter(logdir=str(directory), flush_secs=5)
        self._file.add_text(tag="settings", text_string=settings, step=step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """A scalar per curve; without ``%``, which VisualDL refuses in names."""
        for name, value in values.items():
            self._file.add_scalar(tag=name.replace("%", ""), value=value, step=step)

    def flush(self) -> None:
        """Wait for VisualDL's thread."""
        self._file.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        self._file.close()
