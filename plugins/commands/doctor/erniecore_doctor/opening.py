"""``python -m erniecore_doctor.opening NAME``: open one device and print what it is as one JSON line. Run by ``ernie doctor``
as a subprocess, so that a vendor's library that crashes or hangs does not affect it.
"""

from __future__ import annotations

import json
import sys

from erniecore.api import ErnieError
from erniecore.api.installation import apply_environment, default_device


def main(name: str) -> None:
    """Open device ``name``; prints ``{"facts": …}`` or ``{"message": …, "fix": …}``."""
    try:
        device = default_device(name)
        apply_environment(device.environment())
        device.open()
        print(json.dumps({"facts": dict(device.describe())}))
    except ErnieError as error:
        found = f" ({error.found or error.expected})" if error.found or error.expected else ""
        print(json.dumps({"message": error.message + found, "fix": error.fix}))


if __name__ == "__main__":
    main(sys.argv[1])
