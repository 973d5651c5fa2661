"""Quantisation after training, with calibration data."""
