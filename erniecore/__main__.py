"""``python -m erniecore`` is ``ernie``."""

from __future__ import annotations

import sys

from erniecore.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
