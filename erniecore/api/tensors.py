"""Building block: tensors and arrays in files. Imports no Paddle, so that a directory can be read before a device is opened."""

from erniecore_checkpoint.files import translated
from erniecore_checkpoint.floats import read_tensors, write_tensors
from erniecore_checkpoint.safetensors_io import damaged, open_tensors
from erniecore_checkpoint.safetensors_write import write_safetensors

__all__ = ["damaged", "open_tensors", "read_tensors", "translated", "write_safetensors", "write_tensors"]
