"""The base of callbacks that hand the numbers of a run to a library of curves: which numbers, under which names, and when the
library is opened, flushed and closed. Light: a library is imported when a run starts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from erniecore.api import EnvironmentFault, Field, Plugin, Section, hookimpl, install_command

if TYPE_CHECKING:
    from erniecore.api.callback import RunView

#: fields of events that are not measurements
_NOT_MEASURED = ("event", "time", "step")
#: event -> what the names of its curves begin with
_PREFIXES = {"step": "train", "eval": "eval"}


class CurvesConfig(Section):
    """What all callbacks of this base have."""

    directory: str = Field("curves", min_length=1, description="Log directory, inside the run directory.")
    every: int = Field(1, ge=1, description="Log the metrics of every so many steps.")


class Writer(ABC):
    """A library's log of one run, open."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve; finite values only."""

    @abstractmethod
    def flush(self) -> None:
        """Everything that was logged is to be in files: a checkpoint has been saved, from which a killed run goes on."""

    @abstractmethod
    def close(self) -> None:
        """Flush, and give up what is open."""


def measured(event: Mapping[str, Any], every: int = 1) -> dict[str, float]:
    """Name of a curve -> value, of a ``step`` event (``train/loss``, every so many steps) or an ``eval`` event (``eval/loss``);
    finite numbers only. Of any other event nothing."""
    prefix = _PREFIXES.get(event["event"])
    if prefix is None or (prefix == "train" and int(event["step"]) % every):
        return {}
    numbers = {name: value for name, value in event.items() if isinstance(value, int | float)}
    return {
        f"{prefix}/{name}": float(value)
        for name, value in numbers.items()
        if name not in _NOT_MEASURED and math.isfinite(value)
    }


class CurvesPlugin(Plugin):
    """A callback with a log of curves on the main rank.

    Attributes:
        package: what must be importable. The distribution ``erniecore-NAME`` brings it.
    """

    kind = "callback"
    Config: ClassVar[type[CurvesConfig]] = CurvesConfig
    package: ClassVar[str]

    def open(self, run: RunView, config: Any) -> Writer:
        """The log of a run that starts or goes on (``run.step``). May raise ``ModuleNotFoundError`` for the package, and
        ``OSError`` for the directory."""
        raise NotImplementedError

    @hookimpl
    def ernie_run_start(self, run: RunView) -> None:
        """Open the log; raises ``EnvironmentFault`` where the package is missing or the directory cannot be written."""
        if not run.is_main:
            return
        config = run.settings.callbacks[self.name]
        try:
            _OPEN.setdefault(run, {})[self.name] = (self.open(run, config), config.every)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != self.package:
                raise
            raise EnvironmentFault(
                f"the callback {self.name} needs the package {self.package}",
                next=install_command(self.package, of=f"erniecore-{self.name}"),
            ) from error
        except OSError as error:
            where, found = str(run.out / config.directory), str(error.strerror)
            message = f"cannot write the log of the callback {self.name}"
            raise EnvironmentFault(message, where=where, found=found, fix="check the permissions") from error

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        """Log the numbers of steps and evaluations."""
        if (found := _OPEN.get(run, {}).get(self.name)) is None:
            return
        writer, every = found
        if values := measured(event, every):
            writer.log(int(event["step"]), values)
        elif event["event"] == "checkpoint":
            writer.flush()

    @hookimpl
    def ernie_run_end(self, run: RunView) -> None:
        """Close the log, if it was opened."""
        found = _OPEN.get(run, {}).pop(self.name, None)
        if found is not None:
            found[0].close()


#: run -> name of a callback -> its open log, and how often steps are logged
_OPEN: WeakKeyDictionary[RunView, dict[str, tuple[Writer, int]]] = WeakKeyDictionary()
