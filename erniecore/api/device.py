"""What a device plugin is written with: a ``Device`` of its own. For an accelerator that Paddle knows,
``erniecore-accelerators`` has one that is driven by a profile."""

from erniecore.abilities import ABILITIES
from erniecore.plugin import DevicePlugin
from erniecore.sections import DeviceConfig
from erniecore.types.run import Cluster, Device
from erniecore.units import size_text

__all__ = ["ABILITIES", "Cluster", "Device", "DeviceConfig", "DevicePlugin", "size_text"]
