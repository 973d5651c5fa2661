"""Lets the environment that runs this see another one's packages, behind its own: for tests of what is installed there with
libraries that want other versions of shared packages.

    .venv-loggers/bin/python tests/helpers/behind.py .venv
"""

import sys
import sysconfig
from pathlib import Path

[there] = Path(sys.argv[1]).resolve().glob("lib/python*/site-packages")
here = Path(sysconfig.get_path("purelib"))
if there.parent.name != here.parent.name:
    raise SystemExit(f"{there} is for another Python than {here}")
# addsitedir, so that the other environment's editable installations count as well
(here / "behind.pth").write_text(f"import site; site.addsitedir({str(there)!r})\n")
