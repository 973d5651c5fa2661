"""Weights & Biases logging for erniecore."""
