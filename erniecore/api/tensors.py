"""Building block: tensors and arrays in files. Imports no Paddle, so that a directory can be read before a device is opened."""

from erniecore.checkpoint.files import translated
from erniecore.checkpoint.floats import read_tensors, write_tensors
from erniecore.checkpoint.safetensors_io import damaged, open_tensors
from erniecore.checkpoint.safetensors_write import write_safetensors

__all__ = ["damaged", "open_tensors", "read_tensors", "translated", "write_safetensors", "write_tensors"]
