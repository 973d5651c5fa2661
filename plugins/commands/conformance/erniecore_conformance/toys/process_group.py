"""The plainest ranks that train together: everything over the default group, nothing is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle  # noqa: TID253
import paddle.distributed as dist  # noqa: TID253

from erniecore.api.device import Cluster
from erniecore.api.testing import SingleProcess

_ROOM = 1000


class ToyProcessGroup(SingleProcess):
    """Replicas that see different rows and exchange numbers; other values are beyond a toy."""

    def __init__(self, cluster: Cluster) -> None:
        self.rank, self.size = cluster.rank, cluster.world_size
        dist.init_parallel_env()

    def all_gather_object(self, value: Any) -> list[Any]:
        """JSON of up to a thousand letters."""
        letters = np.frombuffer(json.dumps(value).ljust(_ROOM).encode(), np.uint8).astype(np.int64)
        found: list[Any] = []
        dist.all_gather(found, paddle.to_tensor(letters))
        return [json.loads(bytes(part.numpy().astype(np.uint8))) for part in found]

    def counts_parameter(self, name: str) -> bool:
        """Gradients are alike everywhere: one rank's count."""
        return self.rank == 0

    def reduce_gradients(self, slots: Sequence[Any]) -> None:
        """One message per parameter."""
        with paddle.no_grad():
            for slot in slots:
                dist.all_reduce(slot.parameter.grad)
