"""``ernie eval``: loss per token, bits per byte and exact completions with their uncertainty, by group."""
