"""``ernie merge``: an adapter merged into the weights of its base."""
