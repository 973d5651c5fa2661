"""Sets of kernels with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from erniecore.api import Plugin
from erniecore.api.kernels import Kernel
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.kernels import Function, ToyKernels, supports, transform


class ForNoDevice(ToyKernels):
    """No run would ever use it."""

    devices = frozenset()


class ForAnOperatorOfItsOwn(ToyKernels):
    """An operator that erniecore does not have."""

    operators = {**ToyKernels.operators, "fourier": ("float32",)}

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        return super().load("hadamard", threads)


class NoDtypes(ToyKernels):
    """Does not say what it takes."""

    operators = {"hadamard": ()}


class NotASet(Plugin):
    """Has the members of a set without being one."""

    kind, name, summary = "kernels", "toy", ToyKernels.summary
    devices, operators = ToyKernels.devices, ToyKernels.operators
    fault, load = ToyKernels.fault, ToyKernels.load


class SaysNothing(ToyKernels):
    """None, where text is due."""

    def fault(self) -> str:
        return None  # type: ignore[return-value]


class Undecided(ToyKernels):
    """Can run at every second question."""

    asked = 0

    def fault(self) -> str:
        type(self).asked += 1
        return "not now" * (self.asked % 2)


class LoadsNothing(ToyKernels):
    """Names an operator and has no kernel for it."""

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        return {}


class LoadsAnother(ToyKernels):
    """Replaces a function of another operator."""

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        return {"fp8_quantize": Function(transform, supports)}


class CannotSaySo(ToyKernels):
    """A kernel without ``supports``."""

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        return {"hadamard": Function(transform, None)}  # type: ignore[arg-type]


_FUNCTIONS = "kernels_have_the_functions_of_their_operators"
MUTANTS = (
    mutant("kernels_say_what_they_are_for", ForNoDevice),
    mutant("kernels_say_what_they_are_for", NoDtypes),
    mutant(
        "kernels_say_what_they_are_for",
        NotASet,
        also=("kernels_say_why_they_cannot_run", _FUNCTIONS),
    ),
    mutant("kernels_say_what_they_are_for", ForAnOperatorOfItsOwn, also=(_FUNCTIONS,)),
    mutant("kernels_say_why_they_cannot_run", SaysNothing),
    mutant("kernels_say_why_they_cannot_run", Undecided),
    mutant(_FUNCTIONS, LoadsNothing),
    mutant(_FUNCTIONS, LoadsAnother),
    mutant(_FUNCTIONS, CannotSaySo),
)
