"""Which implementation each operator runs with: the one in ``erniecore.ops`` (``reference``) or a kernel of an installed
distribution. Chosen once, when the device opens; models go on calling ``erniecore.ops``. No paddle and no kernels here.

A distribution offers kernels through the entry-point group ``erniecore.kernels``: name -> :class:`KernelSet`. What a kernel
replaces are functions of ``erniecore.ops`` with their signatures; calls that it does not support, for shape, dtype or
strides, run the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import EntryPoint
from typing import Any, ParamSpec, Protocol, TypeVar

from erniecore.errors import ConfigError, nearest
from erniecore.installed import offers

GROUP = "erniecore.kernels"
REFERENCE = "reference"

#: operator -> functions of erniecore.ops that an implementation may replace
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "adamw": ("adamw_", "square_sum"),
    "attention": ("attention_forward", "attention_backward"),
    "cross_entropy": ("cross_entropy_rows_", "add_product_"),
    "decode_attention": ("decode_attention",),
    "decode_experts": ("decode_experts",),
    "decoder_step": ("decoder_step",),
    "embedding": ("embedding_backward",),
    "fp8_quantize": ("fp8_quantize",),
    "grouped_swiglu": ("grouped_swiglu_forward", "grouped_swiglu_backward"),
    "hadamard": ("hadamard",),
    "packed_weights": ("packed_numbers", "packed_product", "packed_grouped_product"),
    "rms_norm": ("rms_norm_forward", "rms_norm_backward"),
    "rope": ("rotate",),
    "softmax": ("softmax_rows_",),
    "swiglu": ("swiglu_forward", "swiglu_backward"),
    "top_experts": ("top_experts",),
}

P = ParamSpec("P")
R = TypeVar("R")


class Kernel(Protocol):
    """One function: ``run`` where ``supports`` says yes to the same arguments."""

    @property
    def run(self) -> Callable[..., Any]: ...
    @property
    def supports(self) -> Callable[..., bool]: ...


class KernelSet(Protocol):
    """Kernels of one distribution; making one and asking it anything but ``load`` imports nothing heavy.

    Attributes:
        devices: names of device plugins that it is for. operators: keys of ``OPERATORS`` that it has, each with the dtypes
            that its kernels take. on_request: what a set that is never chosen by itself says about it; empty for the others.
    """

    devices: frozenset[str]
    operators: Mapping[str, tuple[str, ...]]
    on_request: str

    def fault(self) -> str:
        """Why it cannot run here and what to do; empty if it can."""
        ...

    def load(self, operator: str, threads: Callable[[], int]) -> Mapping[str, Kernel]:
        """Kernel of each function of ``operator``; paddle is there. ``threads``: how many threads a call from the current
        thread may use. Raises ``OSError`` when the library cannot be loaded."""
        ...


@dataclass(frozen=True)
class Choice:
    """What a run computes with.

    Attributes:
        names: operator -> ``reference`` or the name of a kernel set, for every operator. asked: operators that the
            settings name. remarks: what the user should know.
        sets: the kernel sets that occur in ``names``.
    """

    names: Mapping[str, str]
    asked: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()
    sets: Mapping[str, KernelSet] = field(default_factory=dict)


REFERENCES = Choice(dict.fromkeys(OPERATORS, REFERENCE))

_in_use: dict[str, Kernel] = {}


def replaceable(function: Callable[P, R]) -> Callable[P, R]:
    """A function of ``erniecore.ops`` that the kernel in use stands in for where it supports the arguments."""
    name = function.__name__
    if not any(name in functions for functions in OPERATORS.values()):
        raise ValueError(f"{name} belongs to no operator")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        kernel = _in_use.get(name)
        if kernel is None or not kernel.supports(*args, **kwargs):
            return function(*args, **kwargs)
        result: R = kernel.run(*args, **kwargs)
        return result

    return call


def choose(device: str, asked: Mapping[str, str]) -> Choice:
    """The implementation of every operator on ``device``: what ``asked`` names, else the one kernel that is installed, else
    the reference.

    Raises:
        ConfigError: an operator or a name that does not exist, a kernel that cannot run here, or two kernels for one operator.
    """
    sets_here, remarks = installed()
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
    remarks += [f"kernels {name}: {fault}; the reference operators run" for name, fault in missed.items()]
    used = {name: sets[name] for name in sets if name in names.values()}
    return Choice(names, frozenset(asked), tuple(remarks), used)


def use(choice: Choice, threads: Callable[[], int]) -> list[str]:
    """From here on operators run as ``choice`` says; returns what could not be loaded, one remark each. Needs paddle.

    Raises:
        ConfigError: a kernel that the settings name cannot be loaded.
    """
    _in_use.clear()
    remarks = []
    for operator, name in choice.names.items():
        if name == REFERENCE:
            continue
        try:
            _in_use.update(choice.sets[name].load(operator, threads))
        except OSError as error:
            if operator in choice.asked:
                raise ConfigError.at(f"device.kernels.{operator}", f"{name} cannot be loaded: {error}") from error
            remarks.append(f"kernel {operator} of {name} cannot be loaded ({error}); the reference operator runs")
    return remarks


def in_use() -> frozenset[str]:
    """Functions that a kernel stands in for."""
    return frozenset(_in_use)


def described(choice: Choice) -> str:
    """In one line: ``native (all)``, ``reference (all)``, or each operator with its implementation."""
    found = set(choice.names.values())
    if len(found) == 1:
        return f"{found.pop()} (all)"
    return " ".join(f"{operator}={name}" for operator, name in sorted(choice.names.items()))


def _points() -> list[EntryPoint]:
    return sorted((offer.point for offer in offers(GROUP)), key=lambda point: point.name)


def installed() -> tuple[dict[str, KernelSet], list[str]]:
    """Kernel sets by name, and a remark for each that cannot even be imported."""
    sets: dict[str, KernelSet] = {}
    remarks = []
    for point in _points():
        try:
            sets[point.name] = point.load()
        except Exception as error:  # whatever a third party's module does when it is imported
            remarks.append(f"kernels {point.name} ({point.value}): {error!r}; the reference operators run")
    return sets, remarks


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
        close = nearest(name, known)
        hint = f"did you mean {close}?" if close else f"there are: {', '.join(known)}"
        raise ConfigError.at(key, f"no implementation is called {name!r}; {hint}")
    if faults[name]:
        raise ConfigError.at(key, f"{name} cannot run here: {faults[name]}")
