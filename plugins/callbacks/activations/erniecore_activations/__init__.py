"""Variance of the residual stream behind each layer: callback ``activations``."""
