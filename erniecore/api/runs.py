"""For plugins that read run directories: the names of their files, and the texts of events. Imports neither Paddle nor numpy."""

from erniecore_system.units import size_text

from erniecore.engine.preparation.rundir import EVENTS_NAME, warning_text

__all__ = ["EVENTS_NAME", "size_text", "warning_text"]
