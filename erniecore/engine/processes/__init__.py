"""Several processes of one run: starting, watching, restarting, on one machine and on many."""
