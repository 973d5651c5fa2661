"""Steps of a real run, timed: how many operations per second training reaches on this device. The run is an ordinary one in
a directory that is thrown away.
"""

from __future__ import annotations

import statistics
import tempfile
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.planning.rates import Rate, identity, training

if TYPE_CHECKING:
    from erniecore.engine.preparation.outlook import Outlook

#: first steps that are not counted: memory is not there yet
WARM_UP = 3
#: what the run is made to do
WORDS = ("checkpoint.final=false", "checkpoint.export=false", "log.report=false", "eval.every=0")


def measure_training(
    file: Path | None, overrides: list[str], flags: dict[str, Any], steps: int
) -> tuple[Rate, list[float], Outlook]:
    """The median rate of ``steps`` steps, the seconds of each, and what the plan says of such a step.

    Raises:
        UsageError: the model does not say what its layers are like. Everything that a run may raise.
    """
    from erniecore.config import compose
    from erniecore.engine import entry
    from erniecore.engine.preparation.prepare import prepare
    from erniecore.errors import UsageError

    with tempfile.TemporaryDirectory(prefix="ernie-bench-") as out:
        words = [*overrides, *WORDS, f"run.out={out}/run", f"train.max_steps={WARM_UP + steps}", "run.resume=never"]
        loaded = compose.load(file, words, flags)
        _, outlook = entry.outlook_loaded(loaded)
        if outlook is None:
            raise UsageError("this model does not say what its layers are like", where="--model")
        ready = prepare(loaded)
        result = entry.run_loaded(loaded, console="none")
        events = [event for event in result.events if event["event"] == "step"][WARM_UP:]
    seconds = [event["seconds"] for event in events]
    per_second = statistics.median(outlook.flops.total * e["tokens"] / e["seconds"] for e in events)
    train = ready.settings.train
    shape = (train.batch_size, ready.settings.data.max_seq_len, train.accumulation)
    machine = identity(ready.device.describe())
    day = date.today().isoformat()
    return Rate(ready.device.name, machine, training(train.precision), per_second, shape, day), seconds, outlook
