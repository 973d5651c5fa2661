"""A kind of accelerator as data: packages, variables, abilities, accelerators. Every value says why it is there, and
``evidence`` says what has run on real hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from erniecore.api.device import ABILITIES

#: evidence of a profile that nobody here could try
DECLARED = "declared from the vendor's and Paddle's documentation; not run on a device by this project"


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable that must be set before paddle is imported.

    Attributes:
        value: the same on every host.
        why: one clause for the docs and for ``ernie plugins info``.
        deterministic: only wanted where results are to repeat bit for bit (``device.repeatable``).
    """

    value: str
    why: str
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class AcceleratorSpec:
    """Published figures of an accelerator: memory in bytes, dense TFLOP/s by dtype, memory bandwidth in bytes per second.

    Each needs a primary source, because utilization is reported against them.
    """

    memory: int
    tflops: Mapping[str, float]
    bandwidth: float
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What there is to know about a kind of accelerator.

    Attributes:
        name: the plugin's. title: what people call it.
        place: Paddle's name of the device, as in ``paddle.set_device("npu:0")``.
        packages: distributions that must be installed, as (name, what it is); install: the vendor's command.
        excludes: distributions that provide the same ``paddle`` package and must not be beside them.
        compiled: name of the function of ``paddle`` that says whether it was built for this device; empty for custom
            devices, which Paddle loads as plugins.
        monitor: the vendor's tool that lists devices. visible: the environment variable that selects devices.
        collectives: name of the communication library.
        variables: environment by name.
        dtypes: dtypes of matrix products.
        lacks: ability -> what to do without it; see ``ABILITIES``.
        repeats: whether results are equal bit for bit with the deterministic variables; None: not shown.
        accelerators: by the name that the driver gives them.
        evidence: what ran where.
    """

    name: str
    title: str
    place: str
    packages: tuple[tuple[str, str], ...]
    install: str
    monitor: str
    visible: str
    collectives: str
    dtypes: frozenset[str]
    evidence: str
    compiled: str = ""
    excludes: tuple[str, ...] = ()
    variables: Mapping[str, Variable] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    repeats: bool | None = None
    accelerators: Mapping[str, AcceleratorSpec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = set(self.lacks) - set(ABILITIES)
        if unknown:
            raise ValueError(f"{self.name}: unknown abilities {sorted(unknown)}")
