"""Tokenized samples on disk, for runs over much data."""

__version__ = "0.1.0"
