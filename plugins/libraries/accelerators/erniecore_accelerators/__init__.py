"""What the device plugins for accelerators share: a profile as data, and the one ``Device`` that reads it. A vendor's
plugin is its profile; nothing here knows a vendor's name. Imports no paddle until a device is opened.
"""

from erniecore_accelerators.device import Accelerator, AcceleratorConfig, AcceleratorPlugin
from erniecore_accelerators.profile import DECLARED, AcceleratorSpec, Profile, Variable

__all__ = [
    "DECLARED",
    "Accelerator",
    "AcceleratorConfig",
    "AcceleratorPlugin",
    "AcceleratorSpec",
    "Profile",
    "Variable",
]
