"""Notes when a process of a run begins and ends each phase, as lines of the file ``$RUN_PHASES``: process, ``+`` or ``-``, phase.
With this directory in ``PYTHONPATH`` every interpreter reads this module first; without the variable nothing happens.
Functions are wrapped once their module has been imported and do what they did. Standard library only.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

FILE = "RUN_PHASES"
#: module -> (attribute, phase): the phase lasts as long as the call
CALLS = {
    "erniecore.engine.preparation.prepare": [("prepare", "preparation")],
    "erniecore.engine.training.build": [
        ("build_run_data", "tokenizing"),
        ("assemble", "load"),
        ("export_model", "export"),
    ],
    "erniecore.engine.training.trainer": [("Trainer._step", "step"), ("Trainer.evaluate", "evaluation")],
    "erniecore.engine.training.saving": [("CheckpointSaver.save", "checkpoint")],
    # a save behind the training begins with the call of above and ends here, in another thread
    "erniecore_checkpoint.writer": [("Save.finish", "finish")],
    "erniecore.engine.opening": [("open_device", "paddle")],
}
#: phases that this process has begun, how often
_begun: dict[str, int] = {}


def note(sign: str, phase: str) -> None:
    """One line; a single write, so that lines of several processes do not mix."""
    number = os.open(os.environ[FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(number, f"{os.getpid()} {sign} {phase}\n".encode())
    os.close(number)


def _wrapped(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        now = phase
        if phase == "step":
            _begun[phase] = _begun.get(phase, 0) + 1
            now = "first step" if _begun[phase] == 1 else "steps"
        if phase == "checkpoint" and options.get("background"):
            now = "background save"
        if phase == "finish":
            try:
                return function(*args, **options)
            finally:
                note("-", "background save")
        note("+", now)
        try:
            return function(*args, **options)
        finally:
            if phase == "paddle":
                note("-", "import")
            if now != "background save":
                note("-", now)

    return call


def wrap(module: ModuleType) -> None:
    """Wrap what is to be noted of a module."""
    for place, phase in CALLS[module.__name__]:
        *owners, name = place.split(".")
        owner: Any = functools.reduce(getattr, owners, module)
        setattr(owner, name, _wrapped(getattr(owner, name), phase))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the table as everybody does, and wraps what is in them once they are there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in CALLS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run: Callable[[ModuleType], None] = spec.loader.exec_module

            def execute(module: ModuleType) -> None:
                run(module)
                wrap(module)

            spec.loader.exec_module = execute  # type: ignore[method-assign]
        return spec


def install() -> None:
    """From now on; for the first time in this process."""
    for name in CALLS:
        if name in sys.modules:
            wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


if os.environ.get(FILE):
    note("+", "import")
    install()
