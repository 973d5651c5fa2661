"""The five objectives of ERNIE 3.0 (arXiv:2107.02137), and rows with knowledge."""
