"""The errors of :mod:`erniecore_errors`, a library because those that the core depends on raise them too."""

from erniecore_errors import *  # noqa: F403 -- this module is that library, by the name that the core's readers expect
from erniecore_errors import __all__ as __all__
