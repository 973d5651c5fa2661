"""Operators of ERNIE models in plain Paddle, and the switch between them and kernels. Importing this package is light; the
functions are in ``erniecore_ops.functions`` (``erniecore.api.ops`` for plugins).
"""
