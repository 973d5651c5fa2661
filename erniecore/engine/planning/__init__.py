"""Layouts searched and machines measured: ``ernie plan --cards`` and ``ernie bench``."""
