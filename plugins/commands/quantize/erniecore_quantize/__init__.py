"""``ernie quantize``: the quantizer of a plugin applied to a model directory, with calibration data where it wants some."""
