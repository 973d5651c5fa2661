"""Kernels of the operator `decoder_step`; README.md describes them."""
