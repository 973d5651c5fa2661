"""Whether two sites have the same base model: a digest of names, shapes and some values of every tensor of its directory. It does
not depend on how the weights are cut into files, nor on the layout of a site, and reads little of each tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from erniecore.api.tensors import open_tensors

#: values at the beginning and at the end of each tensor
_LOOKED_AT = 1024


def base_digest(path: str, architecture: Mapping[str, Any], seed: int) -> str:
    """SHA-256 of the model in ``path``; without a directory, of what random weights are made of."""
    digest = hashlib.sha256()
    files = sorted(Path(path).glob("*.safetensors")) if path else []
    if not files:
        digest.update(json.dumps([dict(architecture), seed], sort_keys=True, default=str).encode())
        return digest.hexdigest()
    tensors = {name: tensor for file in files for name, tensor in open_tensors(file).items()}
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, tensor.dtype, list(tensor.shape)]).encode())
        flat = np.ascontiguousarray(tensor.load()).reshape(-1)
        digest.update(flat[:_LOOKED_AT].tobytes() + flat[-_LOOKED_AT:].tobytes())
        tensor.release()
    return digest.hexdigest()
