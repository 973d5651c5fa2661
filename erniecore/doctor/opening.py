"""``python -m erniecore.doctor.opening NAME``: open one device and print what it is as one JSON line. Run by the doctor
in a process of its own, so that a vendor's library that crashes or hangs takes nothing with it.
"""

from __future__ import annotations

import json
import sys

from erniecore import registry
from erniecore.doctor.devices import device_of
from erniecore.engine.launch import apply_environment
from erniecore.errors import ErnieError


def main(name: str) -> None:
    """Open device ``name``; prints ``{"facts": …}`` or ``{"message": …, "fix": …}``."""
    try:
        device = device_of(registry.load("device", name))
        apply_environment(device.environment())
        device.open()
        print(json.dumps({"facts": dict(device.describe())}))
    except ErnieError as error:
        found = f" ({error.found or error.expected})" if error.found or error.expected else ""
        print(json.dumps({"message": error.message + found, "fix": error.fix}))


if __name__ == "__main__":
    main(sys.argv[1])
