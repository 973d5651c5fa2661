"""``ernie completion``: completion of words by shells."""
