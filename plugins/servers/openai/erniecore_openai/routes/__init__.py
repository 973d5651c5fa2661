"""The routes, by what they are for."""
