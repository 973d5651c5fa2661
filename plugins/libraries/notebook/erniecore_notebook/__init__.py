"""Runs from Python, as in a notebook: ``erniecore.Trainer``."""
