"""Building block: tensors and arrays in files. Imports no Paddle, so that a directory can be read before a device is opened."""

from erniecore.checkpoint.arrays import read_arrays, write_arrays
from erniecore.checkpoint.floats import read_tensors, write_tensors

__all__ = ["read_arrays", "read_tensors", "write_arrays", "write_tensors"]
