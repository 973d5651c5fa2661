"""Checkpoints and safetensors files as bytes and numpy arrays: crash-safe, hashed, never a pickle. No paddle.

A checkpoint is a directory ``step-%08d`` with tensors in named groups (``model``, ``optim``, ``ema``, ...), one JSON
state and a manifest with the hash of every file and tensor. A run needs four names::

    path = save_checkpoint(run_dir / "ckpt", step, {"model": arrays, "optim": moments}, state, keep=3)
    path, notes = newest_verified(run_dir / "ckpt")
    checkpoint = load_checkpoint(path)                 # verified; .state, .step, .tensors["model"][name] (lazy)
    checkpoint.require("model", {name: (shape, dtype)})  # missing, unexpected or mis-shaped tensors raise

In numpy, bfloat16 is uint16 (the same bits), as Paddle has it; a ``Tensor`` says the dtype aloud.
"""

from erniecore.checkpoint.manifest import Manifest, checkpoint_name
from erniecore.checkpoint.reader import Checkpoint, list_checkpoints, load_checkpoint, newest_verified
from erniecore.checkpoint.retention import prune
from erniecore.checkpoint.tensors import Tensor
from erniecore.checkpoint.verify import Finding, verify_checkpoint
from erniecore.checkpoint.writer import save_checkpoint

__all__ = [
    "Checkpoint",
    "Finding",
    "Manifest",
    "Tensor",
    "checkpoint_name",
    "list_checkpoints",
    "load_checkpoint",
    "newest_verified",
    "prune",
    "save_checkpoint",
    "verify_checkpoint",
]
