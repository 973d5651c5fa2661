"""Fixtures of serving engines, and of passes in one call."""

from decoder_models import use as use
from engines import fixtures as fixtures
from engines import kernel as kernel
from engines import running as running
from engines import toy as toy
