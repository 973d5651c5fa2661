"""Plugins with one thing wrong that no plugin of any kind may have."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from erniecore.api import Field, Json, Section, hookimpl
from erniecore.api.device import Device
from erniecore.api.export import ExporterCapability
from erniecore.api.method import RunView
from erniecore_conformance.mutants.mutant import Mutant, mutant
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.others import (
    ToyCallbackPlugin,
    ToyDevice,
    ToyDevicePlugin,
    ToyFormatPlugin,
    ToyServerConfig,
    ToyServerPlugin,
)

_LOADED_HERE = "pytest" in sys.modules


class HeavyPlan(ToyDevicePlugin):
    """Asks paddle before the device is open."""

    @hookimpl
    def ernie_open_device(self) -> Device:
        import paddle

        assert paddle
        return ToyDevice()


class SetsEnvironment(ToyDevicePlugin):
    """Sets a variable by itself."""

    @hookimpl
    def ernie_open_device(self) -> Device:
        os.environ.setdefault("TOY_MUTANT", "1")
        os.environ.pop("TOY_MUTANT_" + str(os.getpid()), None)
        return ToyDevice()


class OnlyHere(ToyServerPlugin):
    """Has another type of settings in a process that did not import pytest."""

    class Config(Section):
        if _LOADED_HERE:
            host: str = Field("127.0.0.1", description="Address to listen on.")
        else:
            address: str = Field("127.0.0.1", description="Address to listen on.")


class WrongName(ToyServerPlugin):
    """Called otherwise than its entry point."""

    name = "toy-two"


class Camel(ToyServerPlugin):
    """The name is not in kebab case."""

    name = "toyServer_2"


class Capable(ToyServerPlugin):
    """Has a capability of another kind."""

    capabilities = frozenset({ExporterCapability.LOSSY})


class Chatty(ToyServerPlugin):
    """A summary of two lines."""

    summary = "a server for the conformance kit\nthat says more"


class Misspelt(ToyServerPlugin):
    """A hook that nobody calls."""

    @hookimpl
    def ernie_run_began(self, run: RunView) -> None:
        pass


class Unmarked(ToyServerPlugin):
    """A hook that pluggy does not see."""

    def ernie_run_start(self, run: RunView) -> None:
        pass


class WrongArgument(ToyServerPlugin):
    """An argument that the hook does not have."""

    @hookimpl
    def ernie_run_start(self, trainer: Any) -> None:
        pass


class HasDefault(ToyServerPlugin):
    """A default that hides that the argument never arrives."""

    @hookimpl
    def ernie_run_start(self, run: Any = None) -> None:
        pass


class Unfinished(ToyServerPlugin):
    """The hook of its kind is missing."""

    ernie_serve = None  # type: ignore[assignment]


class TwoKinds(ToyServerPlugin):
    """Implements the hook of an exporter too."""

    @hookimpl
    def ernie_export(self, target: Path) -> Path:
        return target


class Thawed(ToyServerPlugin):
    """Settings can be changed."""

    class Config(ToyServerConfig):
        model_config = ConfigDict(frozen=False)


class Tolerant(ToyServerPlugin):
    """Unknown keys are dropped."""

    class Config(ToyServerConfig):
        model_config = ConfigDict(extra="ignore")


class Undescribed(ToyServerPlugin):
    """A field without a word."""

    class Config(ToyServerConfig):
        verbose: bool = False


class BadDefault(ToyServerPlugin):
    """A default that the field itself refuses."""

    class Config(ToyServerConfig):
        backlog: int = Field(0, ge=1, description="Waiting connections.")


class Remembers(ToyCallbackPlugin):
    """Counts steps on itself."""

    seen: ClassVar[list[str]] = []

    @hookimpl
    def ernie_event(self, run: RunView, event: Mapping[str, Any]) -> None:
        self.seen.append(str(run.out))


class WrongExpectation(ToyFormatPlugin):
    """Expects a check to fail that does not exist."""

    expected_failures: ClassVar[dict[str, str]] = {"format_matches_own_row": "a typing error"}


class NoReason(ToyFormatPlugin):
    """Expects a failure without saying why, of a check that does fail."""

    expected_failures: ClassVar[dict[str, str]] = {"format_refuses_foreign_rows": " "}

    @hookimpl
    def ernie_match_row(self, row: Json) -> bool:
        return True


def _elsewhere(check: str, module: str, name: str, also: tuple[str, ...] = ()) -> Mutant:
    """A mutant whose target is another module than its class here."""
    plugin = type(name, (ToyServerPlugin,), {"__module__": module})()
    return Mutant(check, Subject(plugin, "server", "toy", f"{module}:plugin"), also)


_HERE = "erniecore_conformance.mutants"
MUTANTS = (
    _elsewhere("every_loads_in_clean_process", f"{_HERE}.broken", "Broken"),
    _elsewhere("every_module_is_light", f"{_HERE}.heavy", "Heavy"),
    mutant("every_light_hooks_stay_light", HeavyPlan),
    mutant("every_leaves_environment_alone", SetsEnvironment),
    mutant("every_recreates_in_worker", OnlyHere),
    mutant("every_name_equals_entry_point", WrongName, name="toy"),
    mutant("every_name_is_kebab", Camel),
    mutant("every_capabilities_are_of_its_kind", Capable),
    mutant("every_has_summary", Chatty),
    mutant("every_core_has_upper_bound", ToyServerPlugin, requires=("erniecore>=0.1", "numpy<3")),
    mutant("every_core_has_upper_bound", ToyServerPlugin, requires=("numpy<3",)),
    mutant("every_hooks_are_known", Misspelt),
    mutant("every_hooks_are_known", Unmarked),
    mutant("every_hook_arguments_match", WrongArgument),
    mutant("every_hook_arguments_have_no_defaults", HasDefault),
    mutant("every_implements_its_hooks", Unfinished),
    mutant("every_keeps_to_its_kind", TwoKinds),
    mutant("every_config_is_frozen", Thawed),
    mutant("every_config_forbids_unknown_keys", Tolerant),
    mutant("every_config_is_described", Undescribed),
    mutant("every_config_defaults_are_valid", BadDefault),
    mutant("every_is_stateless", Remembers),
    mutant("every_expected_failures_are_real", WrongExpectation),
    mutant("every_expected_failures_are_real", NoReason),
)
