"""Every hook that a plugin can implement: when it is called, how often, on which ranks, what it may raise. One file per kind.

Rules: calls are by keyword; an implementation may take fewer arguments, but declares no default values
(pluggy never passes them). ``config`` is always the plugin's own section of the settings, never more. Nothing
here changes settings. Additions are new arguments or hooks; a removal warns for one minor version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from erniecore.hookspecs.adapter import AdapterHooks
from erniecore.hookspecs.corpus import CorpusHooks
from erniecore.hookspecs.device import DeviceHooks
from erniecore.hookspecs.exporter import ExporterHooks
from erniecore.hookspecs.forecaster import ForecasterHooks
from erniecore.hookspecs.format import FormatHooks
from erniecore.hookspecs.importer import ImporterHooks
from erniecore.hookspecs.launcher import LauncherHooks
from erniecore.hookspecs.lifecycle import LifecycleHooks
from erniecore.hookspecs.method import MethodHooks
from erniecore.hookspecs.model import ModelHooks
from erniecore.hookspecs.optimizer import OptimizerHooks
from erniecore.hookspecs.parallel import ParallelHooks
from erniecore.hookspecs.quantizer import QuantizerHooks
from erniecore.hookspecs.reader import ReaderHooks
from erniecore.hookspecs.reward import RewardHooks
from erniecore.hookspecs.server import ServerHooks

#: the classes of hooks, in the order in which the reference lists them
SPECIFICATIONS: tuple[type, ...] = (
    DeviceHooks,
    ParallelHooks,
    ModelHooks,
    AdapterHooks,
    QuantizerHooks,
    MethodHooks,
    OptimizerHooks,
    LauncherHooks,
    FormatHooks,
    ReaderHooks,
    CorpusHooks,
    RewardHooks,
    ImporterHooks,
    ExporterHooks,
    ServerHooks,
    ForecasterHooks,
    LifecycleHooks,
)

#: name -> specification of every hook
HOOKS: Mapping[str, Callable[..., Any]] = {
    name: function for specs in SPECIFICATIONS for name, function in vars(specs).items() if name.startswith("ernie_")
}
