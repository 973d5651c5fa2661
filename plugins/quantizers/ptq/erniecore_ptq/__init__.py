"""Post-training quantization with calibration data."""
