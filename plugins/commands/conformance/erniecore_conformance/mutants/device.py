"""Devices with one thing wrong."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erniecore.api import DeviceUnavailable, hookimpl
from erniecore.api.device import Device
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.others import ToyDevice, ToyDevicePlugin


class Changed(ToyDevicePlugin):
    """Opens a device that is broken in one way."""

    Opens: type[Any] = ToyDevice

    @hookimpl
    def ernie_open_device(self) -> Device:
        device: Device = self.Opens()
        return device


class Counts(Changed):
    """The environment depends on how often one asks."""

    class Opens(ToyDevice):
        asked = 0

        def environment(self) -> Mapping[str, str]:
            self.asked += 1
            return {"ERNIE_TOY_A": str(self.asked)}


class Unsorted(Changed):
    """Names in no order."""

    class Opens(ToyDevice):
        def environment(self) -> Mapping[str, str]:
            return {"ERNIE_TOY_B": "2", "ERNIE_TOY_A": "1"}


class HomeBound(Changed):
    """A value holds the user's home."""

    class Opens(ToyDevice):
        def environment(self) -> Mapping[str, str]:
            return {"ERNIE_TOY_CACHE": f"{Path.home()}/.cache", "ERNIE_TOY_PID": str(os.getpid())}


class OtherName(Changed):
    """The device is called otherwise than its plugin."""

    class Opens(ToyDevice):
        name = "processor"


class NoRemedy(Changed):
    """Absent, and no word on what to do."""

    class Opens(ToyDevice):
        def open(self) -> None:
            raise DeviceUnavailable("the device is absent")


class OpensOnce(Changed):
    """Opening the device again fails."""

    class Opens(ToyDevice):
        opened = False

        def open(self) -> None:
            if self.opened:
                raise RuntimeError("already open")
            self.opened = True


class Silent(Changed):
    """Describes the device without any fact."""

    class Opens(ToyDevice):
        def describe(self) -> Mapping[str, str]:
            return {}


class NoMemory(Changed):
    """Always says that nothing was used."""

    class Opens(ToyDevice):
        def peak_memory(self) -> int:
            return 0


class ClaimsHalf(Changed):
    """Promises a dtype that has no matrix product here."""

    class Opens(ToyDevice):
        dtypes = frozenset({"float32", "bfloat16"})


class Reseeds(Changed):
    """``paddle.seed`` is ignored while the device is open."""

    class Opens(ToyDevice):
        def open(self) -> None:
            import paddle

            _patch(self, paddle, "randn")


class Undecided(Changed):
    """Does not say whether results repeat."""

    class Opens(ToyDevice):
        deterministic: Any = "sometimes"


class ClaimsToRepeat(Changed):
    """Says that results repeat, but they do not."""

    class Opens(ToyDevice):
        def open(self) -> None:
            import paddle

            _patch(self, paddle.nn.functional, "embedding")


def _patch(device: Device, module: Any, name: str) -> None:
    """While ``device`` lives, no two calls of a function give the same."""
    original = getattr(module, name)
    if hasattr(original, "calls"):
        return

    class Call:
        calls = 0

        def __call__(self, *arguments: Any) -> Any:
            self.calls += 1
            return original(*arguments) * (1 + self.calls)

    setattr(module, name, Call())
    weakref.finalize(device, setattr, module, name, original)


MUTANTS = (
    mutant("device_environment_is_pure", Counts),
    mutant("device_environment_is_sorted", Unsorted),
    mutant("device_environment_is_portable", HomeBound),
    mutant("device_name_is_its_plugins", OtherName),
    mutant("device_refusal_has_remedy", NoRemedy),
    mutant("device_opens_twice", OpensOnce),
    mutant("device_describes_itself", Silent),
    mutant("device_memory_grows", NoMemory),
    mutant("device_dtypes_compute", ClaimsHalf),
    mutant("device_randomness_repeats", Reseeds),
    mutant("device_says_whether_it_repeats", Undecided),
    mutant("device_repeats_bit_for_bit", ClaimsToRepeat),
)
