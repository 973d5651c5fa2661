"""Every hook that a plugin can implement: when it is called, how often, on which ranks, what it may raise. One file per kind.

Rules: calls are by keyword; an implementation may take fewer arguments, but declares no default values
(pluggy never passes them). ``config`` is always the plugin's own section of the settings, never more. Nothing
here changes settings. Additions are new arguments or hooks; a removal warns for one minor version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

#: kind -> its class of hooks, in the module of the same name; in the order in which the reference lists them
CLASSES: Mapping[str, str] = {
    "device": "DeviceHooks",
    "parallel": "ParallelHooks",
    "model": "ModelHooks",
    "adapter": "AdapterHooks",
    "quantizer": "QuantizerHooks",
    "method": "MethodHooks",
    "optimizer": "OptimizerHooks",
    "schedule": "ScheduleHooks",
    "launcher": "LauncherHooks",
    "format": "FormatHooks",
    "reader": "ReaderHooks",
    "corpus": "CorpusHooks",
    "reward": "RewardHooks",
    "importer": "ImporterHooks",
    "exporter": "ExporterHooks",
    "server": "ServerHooks",
    "forecaster": "ForecasterHooks",
    "lifecycle": "LifecycleHooks",  # of plugins of every kind
}


def specification(kind: str) -> type:
    """The class of the hooks of a kind in ``CLASSES``."""
    found: type = getattr(import_module(f"{__name__}.{kind}"), CLASSES[kind])
    return found


def all_specifications() -> tuple[type, ...]:
    """The classes of hooks of all kinds."""
    return tuple(map(specification, CLASSES))


def all_hooks() -> Mapping[str, Callable[..., Any]]:
    """Name -> specification of every hook."""
    return {
        name: function
        for specs in all_specifications()
        for name, function in vars(specs).items()
        if name.startswith("ernie_")
    }
