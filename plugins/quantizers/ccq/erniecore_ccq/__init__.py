"""Frozen weights in 2.5 or 2.06 bits: convolutional codes."""
