"""Commands on data files before a run: they are checked, shown and counted; the entries of the token cache are listed."""
