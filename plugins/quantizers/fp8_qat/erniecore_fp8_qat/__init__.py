"""Training in eight-bit floating point."""
