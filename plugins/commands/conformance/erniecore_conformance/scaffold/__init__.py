"""Writes plugin packages from templates (``ernie new plugin``). The templates are package data in ``templates/``."""
