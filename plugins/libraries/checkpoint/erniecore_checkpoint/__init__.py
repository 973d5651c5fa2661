"""Checkpoints and safetensors files as bytes and numpy arrays: crash-safe, hashed, never a pickle. No paddle.

A checkpoint is a directory ``step-%08d`` with tensors in named groups (``model``, ``optim``, ``ema``, ...), one JSON
state and a manifest with the hash of every file and tensor. In four calls, of ``save`` and ``reader``::

    path = save_checkpoint(run_dir / "ckpt", step, {"model": arrays, "optim": moments}, state, keep=3)
    path, notes = newest_verified(run_dir / "ckpt")
    checkpoint = load_checkpoint(path)                 # verified; .state, .step, .tensors["model"][name] (lazy)
    checkpoint.require("model", {name: (shape, dtype)})  # missing, unexpected or mis-shaped tensors raise

In numpy, bfloat16 is uint16 (the same bits), as Paddle has it; a ``Tensor`` says the dtype aloud.
"""
