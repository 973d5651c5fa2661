"""What a device may be unable to do, and the check of plugins that need it. No paddle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from erniecore.errors import ConfigError

if TYPE_CHECKING:
    from erniecore.types.run import Device

#: what a device may lack, and what that means; plugins name what they cannot do without in ``Plugin.needs``
ABILITIES: Mapping[str, str] = {
    "fp8": "numbers and matrix products in float8",
    "row-index-attention": "attention kernels with start and end row indices (FlashMask)",
    "fused-rms-norm": "RMS normalization in one kernel",
    "fused-rope": "rotary embedding in one kernel",
    "batched-p2p": "batched point-to-point communication, which pipelines use",
    "all-to-all": "all-to-all communication, which expert parallelism uses",
    "host-offload": "optimizer state in host memory",
}


def check_needs(kind: str, name: str, needs: Iterable[str], device: Device) -> None:
    """Refuse a plugin on a device that lacks what it cannot do without.

    Raises:
        ConfigError: names the plugin, the device, and what to do instead.
    """
    lacks = device.lacks
    for ability in sorted(set(needs) & lacks.keys()):
        message = f"{kind} {name} needs {ABILITIES[ability]}, which device {device.name} lacks: {lacks[ability]}"
        raise ConfigError.at("device", message)
