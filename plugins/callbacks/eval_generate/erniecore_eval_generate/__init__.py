"""Evaluation of a run by generated completions: exact answers and any reward function on held-out rows."""
