"""``ernie eval``: loss per token, bits per byte and exact answers with their uncertainty, by group."""
