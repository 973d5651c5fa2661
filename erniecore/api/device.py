"""For device plugins: an own ``Device``. ``erniecore-accelerators`` has one for accelerators that Paddle supports, configured by
a profile.
"""

from erniecore_system.units import size_text

from erniecore.abilities import ABILITIES
from erniecore.plugin import DevicePlugin
from erniecore.sections import DeviceConfig
from erniecore.signals import guarding_import
from erniecore.types.run import Cluster, Device

__all__ = ["ABILITIES", "Cluster", "Device", "DeviceConfig", "DevicePlugin", "guarding_import", "size_text"]
