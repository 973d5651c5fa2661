"""Gates of the residual stream: clipped gradients and metrics. Callback ``gpas``."""
