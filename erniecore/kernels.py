"""Which implementation each operator runs with: the one in ``erniecore_ops`` (``reference``) or a kernel of an installed
distribution. Chosen once, when the device opens; models go on calling ``erniecore_ops``. No paddle and no kernels here.

Kernel sets are plugins of the kind ``kernels``. What a kernel replaces are functions of ``erniecore_ops`` with their
signatures; calls that it does not support, for shape, dtype or strides, run the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from erniecore_catalog import install_command
from erniecore_catalog.known import home_of, kernels_for
from erniecore_ops.kernels import OPERATORS, Kernel, in_use, put_in_use

from erniecore import registry
from erniecore.errors import ConfigError, PluginError, nearest
from erniecore.plugin import KernelSet

__all__ = ["OPERATORS", "REFERENCE", "REFERENCES", "Choice", "choose", "described", "in_use", "installed", "use"]

REFERENCE = "reference"


@dataclass(frozen=True)
class Choice:
    """What a run computes with.

    Attributes:
        names: operator -> ``reference`` or the name of a kernel set, for every operator. asked: operators that the
            settings name. warnings: kernel sets that cannot run here.
        sets: the kernel sets that occur in ``names``. matmul_precision: what float32 products may be rounded to.
    """

    names: Mapping[str, str]
    asked: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    sets: Mapping[str, KernelSet] = field(default_factory=dict)
    matmul_precision: str = "highest"


REFERENCES = Choice(dict.fromkeys(OPERATORS, REFERENCE))


def choose(device: str, asked: Mapping[str, str], matmul_precision: str = "highest") -> Choice:
    """The implementation of every operator on ``device``: what ``asked`` names, else the one kernel that is installed, else
    the reference.

    Raises:
        ConfigError: an operator or a name that does not exist, a kernel that cannot run here, or two kernels for one operator.
    """
    sets_here, warnings = installed()
    sets = {name: found for name, found in sets_here.items() if device in found.devices}
    faults = {name: found.fault() for name, found in sets.items()}
    for operator, name in asked.items():
        _check(operator, name, sets, faults)
    names = {}
    for operator in OPERATORS:
        able = [
            n for n, found in sets.items() if operator in found.operators and not faults[n] and not found.on_request
        ]
        if len(able) > 1 and operator not in asked:
            message = f"{' and '.join(able)} both have this kernel; name one of them"
            raise ConfigError.at(f"device.kernels.{operator}", message)
        names[operator] = asked.get(operator) or (able[0] if able else REFERENCE)
    missed = {name: fault for name, fault in faults.items() if fault and not sets[name].on_request}
    warnings += [f"kernels {name}: {fault}; the reference operators run" for name, fault in missed.items()]
    if not sets and len(asked) < len(OPERATORS) and (home := kernels_for(device)):
        install = install_command(home)
        warnings.append(
            f"no kernels for {device} are installed; the reference operators run, which are slower: {install}"
        )
    used = {name: sets[name] for name in sets if name in names.values()}
    return Choice(names, frozenset(asked), tuple(warnings), used, matmul_precision)


def use(choice: Choice, threads: Callable[[], int]) -> list[str]:
    """Load the kernels of ``choice`` and use them from here on; returns a warning for each that cannot be loaded. Needs paddle.

    Raises:
        ConfigError: a kernel that the settings name cannot be loaded.
    """
    from erniecore_ops.matmul import set_matmul_precision

    loaded: dict[str, Kernel] = {}
    warnings = []
    for operator, name in choice.names.items():
        if name == REFERENCE:
            continue
        try:
            loaded.update(choice.sets[name].load(operator, threads))
        except OSError as error:
            if operator in choice.asked:
                raise ConfigError.at(f"device.kernels.{operator}", f"{name} cannot be loaded: {error}") from error
            warnings.append(f"kernel {operator} of {name} cannot be loaded ({error}); the reference operator runs")
    put_in_use(loaded)
    if slow := set_matmul_precision(choice.matmul_precision):
        warnings.append(f"train.matmul_precision: {slow}")
    return warnings


def described(choice: Choice) -> str:
    """In one line: ``native (all)``, ``reference (all)``, or each operator with its implementation."""
    found = set(choice.names.values())
    if len(found) == 1:
        return f"{found.pop()} (all)"
    return " ".join(f"{operator}={name}" for operator, name in sorted(choice.names.items()))


def installed() -> tuple[dict[str, KernelSet], list[str]]:
    """The installed kernel sets by name, and a warning for each that cannot be used."""
    sets: dict[str, KernelSet] = {}
    warnings = []
    for name in sorted({entry.name for entry in registry.entries("kernels")}):
        try:
            found = registry.load("kernels", name)
        except PluginError as error:
            warnings.append(f"kernels {name}: {error.message} ({error.where}); the reference operators run")
            continue
        if isinstance(found, KernelSet):
            sets[name] = found
        else:
            warnings.append(f"kernels {name}: {type(found).__name__} is no KernelSet; the reference operators run")
    return sets, warnings


def _check(operator: str, name: str, sets: Mapping[str, KernelSet], faults: Mapping[str, str]) -> None:
    key = f"device.kernels.{operator}"
    if operator not in OPERATORS:
        close = nearest(operator, OPERATORS)
        hint = f"did you mean {close}?" if close else f"operators: {', '.join(OPERATORS)}"
        raise ConfigError.at(key, f"no operator is called {operator!r}; {hint}")
    if name == REFERENCE:
        return
    known = [REFERENCE, *(name for name, found in sets.items() if operator in found.operators)]
    if name not in known:
        close, home = nearest(name, known), home_of("kernels", name)
        hint = f"did you mean {close}?" if close else f"there are: {', '.join(known)}"
        hint = install_command(home) if home and name not in sets else hint
        raise ConfigError.at(key, f"no implementation is called {name!r}; {hint}")
    if faults[name]:
        raise ConfigError.at(key, f"{name} cannot run here: {faults[name]}")
