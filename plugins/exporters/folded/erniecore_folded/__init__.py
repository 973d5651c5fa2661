"""Scaling of the residual stream folded into the weights: exporter ``hf-folded``."""
