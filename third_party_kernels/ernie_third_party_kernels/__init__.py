"""Kernels in C++ for the operators of erniecore, with their references in numpy. A leaf: importing it needs neither
erniecore, nor paddle, nor the compiled library; ``plugin`` is what erniecore finds through the entry point.

One folder per kernel: ``kernel.cpp``, ``binding.py`` (what erniecore calls, on Paddle's tensors) and ``reference.py`` (what it
computes, in numpy).
"""

__version__ = "0.1.0"
