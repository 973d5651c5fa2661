"""Small experiments on what papers claim. ``python -m benchmarks.papers NAME`` runs one; a module of this package is one."""
