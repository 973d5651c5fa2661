"""Fixtures of serving engines."""

from engines import fixtures as fixtures
from engines import kernel as kernel
from engines import running as running
from engines import toy as toy
