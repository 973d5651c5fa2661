"""The callback ``report``: makes ``report.html`` and ``loss.png`` when a run ends."""

from __future__ import annotations

import contextlib
import logging

from erniecore.api import ErnieError, Plugin, hookimpl
from erniecore.api.callback import RunView

log = logging.getLogger("erniecore")


class ReportPlugin(Plugin):
    """Writes the report of a run's events. Every run takes it along where it is installed, unless ``log.report: false``."""

    kind = "callback"
    name = "report"
    summary = "writes report.html and loss.png at the end of a run"

    @hookimpl
    def ernie_run_end(self, run: RunView, error: BaseException | None) -> None:
        """On the main rank, unless somebody pressed Ctrl-C twice and waits. A failure is a warning: checkpoints and model,
        which the run was for, are there already."""
        if not run.is_main or isinstance(error, KeyboardInterrupt):
            return
        try:
            from erniecore_report.write import write_report

            for note in write_report(run.out).notes:
                log.info("report: %s", note)  # run_end has been said, so the rank's log has it
        except Exception as fault:
            log.exception("the report could not be written")
            with contextlib.suppress(ErnieError, OSError):  # a disk that took no report may take no event either
                why = fault.strerror if isinstance(fault, OSError) and fault.strerror else fault
                remedy = f"`ernie runs report {run.out}` tries again"
                run.emit("warning", kind="report", message=f"the report could not be written: {why}; {remedy}")


plugin = ReportPlugin()
