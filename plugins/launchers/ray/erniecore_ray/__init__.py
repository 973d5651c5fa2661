"""The ranks of a run as actors of a Ray cluster."""
