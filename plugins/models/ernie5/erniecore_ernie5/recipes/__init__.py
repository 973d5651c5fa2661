"""Recipes that ``model.size`` can name: fragments of a run file whose ``model.architecture`` is a config.json."""
