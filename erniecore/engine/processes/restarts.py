"""A run that is started again when its processes die of something that may pass: killed, lost contact, did not find each
other. Errors of settings, data, numbers or plugins would come again, so they end the run at once. No paddle here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.checkpoint.writer import LATEST_NAME
from erniecore.engine.preparation.rundir import EVENTS_NAME
from erniecore.engine.processes import supervise
from erniecore.engine.processes.nodes import ALONE, Meeting, Site
from erniecore.errors import EnvironmentFault

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared

#: codes of failures that may pass
TRANSIENT = ("ERN-E020", "ERN-E021", "ERN-E022", "ERN-E024", "ERN-E025")
#: longest pause before a restart, seconds
LONGEST_PAUSE = 60.0


def run_restarting(
    ready: Prepared, restarts: int, tell: Callable[[str], None], site: Site = ALONE
) -> Mapping[str, float]:
    """Run to the end, with at most ``restarts`` further starts; the last metrics.

    Args:
        site: this machine; with several, each does the same, and they start again together.
        tell: told of each restart; ``events.jsonl`` gets a warning of kind ``restart`` too.
    Raises:
        ErnieError: a failure that does not pass, or one too many.
    """
    with closing(Meeting(site, tell)) as meeting:
        return _run(ready, restarts, tell, meeting)


def _run(ready: Prepared, restarts: int, tell: Callable[[str], None], meeting: Meeting) -> Mapping[str, float]:
    loaded, in_vain, came_to = ready.loaded, 0, newest(ready.out)
    for attempt in range(restarts + 1):
        try:
            return supervise.run_processes(
                loaded, ready.out, ready.num_processes, name=ready.name, console=ready.console, meeting=meeting
            )
        except EnvironmentFault as error:
            if error.code not in TRANSIENT or attempt == restarts:
                raise
            in_vain, came_to = (0 if newest(ready.out) != came_to else in_vain + 1), newest(ready.out)
            pause = pause_after(in_vain)
            text = f"restart {attempt + 1} of {restarts} in {pause:g} s: {error.message} ({error.where})"
        tell(text)
        if not meeting.site.rank:
            _record(ready, attempt + 1, text)
        time.sleep(pause)
        file, overrides, flags = loaded.request
        # whatever the first start was to do, the next ones go on where it came to
        loaded = replace(loaded, request=(file, overrides, {**flags, "resume": "auto"}))
    raise AssertionError("the last attempt returns or raises")


def pause_after(in_vain: int) -> float:
    """Seconds before the next start: none after one that got ahead, then 1, 2, 4, … while ``in_vain`` starts have not."""
    return min(2.0 ** (in_vain - 1), LONGEST_PAUSE) if in_vain else 0.0


def newest(out: Path) -> str:
    """The newest checkpoint of a run by name, as its writer left it; it tells whether a start got ahead."""
    try:
        return (out / "ckpt" / LATEST_NAME).read_text(encoding="utf-8")
    except OSError:
        return ""


def _record(ready: Prepared, attempt: int, text: str) -> None:
    event = {"event": "warning", "time": time.time(), "kind": "restart", "attempt": attempt, "message": text}
    with (ready.out / EVENTS_NAME).open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(event, ensure_ascii=False) + "\n")  # the last line may be half a line
