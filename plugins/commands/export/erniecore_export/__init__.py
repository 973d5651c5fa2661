"""``ernie export`` and ``erniecore.export``: a trained model for others to load, proved to be the same model."""
