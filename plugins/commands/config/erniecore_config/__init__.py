"""``ernie config``: settings with their sources, checked, explained, compared, as a schema, and imported."""
