"""What the Triton kernels need of a framework: torch or Paddle, whichever the tensors are of. Importing it needs neither."""

from __future__ import annotations

import importlib
from typing import Any


def framework(name: str = "") -> Any:
    """The module ``torch`` or ``paddle``: the one that is named, else the first that is installed.

    Raises:
        ImportError: neither is there.
    """
    for candidate in (name,) if name else ("torch", "paddle"):
        try:
            return importlib.import_module(candidate)
        except ModuleNotFoundError:
            continue
    raise ImportError("the GPU kernels need torch or paddle: install one of them")


def empty(like: Any, shape: list[int], dtype: str = "") -> Any:
    """A new tensor beside ``like``, of its dtype or of the one named."""
    lib = importlib.import_module(type(like).__module__.partition(".")[0])
    kind = getattr(lib, dtype) if dtype else like.dtype
    if lib.__name__ == "torch":
        return lib.empty(shape, dtype=kind, device=like.device)
    return lib.empty(shape, kind)


def tensor_like(like: Any, values: Any, dtype: str = "float32") -> Any:
    """A small tensor of numbers beside ``like``."""
    lib = importlib.import_module(type(like).__module__.partition(".")[0])
    if lib.__name__ == "torch":
        return lib.tensor(values, dtype=getattr(lib, dtype), device=like.device)
    return lib.to_tensor(values, dtype=dtype, place=like.place)


def cast(x: Any, like: Any) -> Any:
    """``x`` in the dtype of ``like``."""
    return x.astype(like.dtype) if hasattr(x, "astype") else x.to(like.dtype)


def from_array(lib: Any, array: Any, device: str) -> Any:
    """A tensor of a numpy array."""
    if lib.__name__ == "torch":
        return lib.from_numpy(array).to(device)
    return lib.to_tensor(array, place=lib.CPUPlace() if device == "cpu" else lib.CUDAPlace(0))


def cdiv(a: int, b: int) -> int:
    """a / b, upwards."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest one that is not below n."""
    return 1 << (n - 1).bit_length()


def has_gpu(lib: Any) -> bool:
    """Whether the framework sees a CUDA device."""
    if lib.__name__ == "torch":
        return bool(lib.cuda.is_available())
    return bool(lib.is_compiled_with_cuda() and lib.device.cuda.device_count())


def gpu_name(lib: Any) -> str:
    """What the GPU calls itself."""
    return str(lib.cuda.get_device_name(0) if lib.__name__ == "torch" else lib.device.cuda.get_device_name(0))


def wait(lib: Any) -> None:
    """Until the GPU has done what it was given."""
    lib.cuda.synchronize() if lib.__name__ == "torch" else lib.device.synchronize()
