"""Kernels of the operator `rms_norm`; README.md describes them."""
