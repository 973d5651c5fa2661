"""``ernie web``: a page over run directories. The runs live on without it."""
