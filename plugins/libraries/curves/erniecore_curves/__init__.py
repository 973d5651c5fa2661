"""The base of callbacks that hand the numbers of a run to a library of curves: which numbers, under which names, and when the
library is opened, flushed and closed. Light: a library is imported when a run starts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from erniecore.api import EnvironmentFault, Field, Plugin, Section, hookimpl, install_command
from erniecore.api.events import metrics

if TYPE_CHECKING:
    from erniecore.api.callback import RunView

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
    """Name of a curve -> value, of a ``step`` event (``train/loss``, every so many steps) or an ``eval`` event (``eval/loss``):
    its metrics. Of any other event nothing."""
    prefix = _PREFIXES.get(event["event"])
    if prefix is None or (prefix == "train" and int(event["step"]) % every):
        return {}
    return {f"{prefix}/{name}".rstrip("/"): value for name, value in metrics(event).items()}


def session(run: RunView) -> str:
    """Name of this session of a run, for libraries that cannot take back what a killed session had logged: the name of the run
    directory, and where the session begins."""
    return f"{run.out.name}-from-step-{run.step:08d}" if run.step else run.out.name


@contextmanager
def undisturbed() -> Iterator[None]:
    """For calls of a library that prints, which would break a run's JSON lines, or that takes Ctrl-C, with which a run saves a
    checkpoint: standard output and error lead nowhere, and the handlers are what they were afterwards."""
    hook, main = sys.excepthook, threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        sys.excepthook = hook
        if main:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def unreported(variables: Mapping[str, str]) -> Iterator[None]:
    """For the import and the start of a library that would tell its maker that it is used: within, the environment has these
    variables, unless the user has set them. Afterwards it is what it was."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


class CurvesPlugin(Plugin):
    """A callback with a log of curves on the main rank.

    Attributes:
        package: what must be importable. requirement: the distribution that has it, where it has another name;
            ``erniecore-NAME`` needs it, or has it in an extra.
        no_reports: variables of the environment with which the library tells its maker nothing about its use.
    """

    kind = "callback"
    Config: ClassVar[type[CurvesConfig]] = CurvesConfig
    package: ClassVar[str]
    requirement: ClassVar[str] = ""
    no_reports: ClassVar[Mapping[str, str]] = {}

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
            with unreported(self.no_reports):
                _OPEN.setdefault(run, {})[self.name] = (self.open(run, config), config.every)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != self.package:
                raise
            raise EnvironmentFault(
                f"the callback {self.name} needs the package {self.package}",
                next=install_command(self.requirement or self.package, of=f"erniecore-{self.name}"),
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
