"""Frozen weights stored in 8 or 4 bits."""
