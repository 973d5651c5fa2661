"""Shows a run below the cell of a notebook: a listener of its events, and where there is a notebook at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from erniecore.api import hookimpl
from erniecore.api.callback import RunView
from erniecore_notebook.page import Heard, html, text

#: seconds between two pictures of one run
_EVERY = 0.25


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML; IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


class NotebookDisplay:
    """Replaces what it has shown as the run goes on, so that a long run leaves one picture in the file of the notebook."""

    def __init__(self) -> None:
        self.heard = Heard()
        self._handle: Any = None
        self._shown = 0.0

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        """Steps change the picture a few times a second, everything else at once."""
        self.heard.hear(event)
        now = time.monotonic()
        if event["event"] != "step" or now - self._shown >= _EVERY:
            self._shown = now
            self._show()

    def _show(self) -> None:
        data = {"text/html": html(self.heard), "text/plain": text(self.heard)}
        if self._handle is None:
            self._handle = import_module("IPython.display").display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
