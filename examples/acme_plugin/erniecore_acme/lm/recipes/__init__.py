"""Recipes that `model.size` can name: a run file with the architecture and settings that suit it."""
