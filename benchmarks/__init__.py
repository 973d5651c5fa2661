"""Measurements of speed and memory, against other systems and against ourselves. Not part of the package."""
