"""The settings of the strategy ``hybrid``."""

from __future__ import annotations

from typing import Literal

from erniecore.api import Field
from erniecore.api.parallel import ParallelConfig


class HybridConfig(ParallelConfig):
    """Degrees of each axis; their product is the number of processes."""

    data: int = Field(0, ge=0, description="Replicas that see different rows; 0: what the processes leave.")
    tensor: int = Field(1, ge=1, description="Ranks that share each matrix, by the model's layout.")
    pipeline: int = Field(
        1, ge=1, description="Stages: ranks that each run some of the layers, one micro-batch after the other."
    )
    chunks: int = Field(
        1,
        ge=1,
        description="Parts of the layers that each stage has and runs in turns: more of them leave it idle for less time, "
        "and need more messages and memory.",
    )
    split: Literal["automatic"] | list[int] = Field(
        "automatic",
        description="Layers of each of the pipeline x chunks parts, in the order of the model; `automatic`: so that the "
        "dearest part, counting the head and further blocks on the last one, is as cheap as can be.",
    )
    expert: int = Field(
        1, ge=1, description="Ranks that share the experts, out of the data x sharding ones that see different rows."
    )
    context: int = Field(1, ge=1, description="Ranks that share each row's positions, for long rows.")
    sharding: int = Field(1, ge=1, description="Replicas that share the optimizer's state; they see different rows.")
    sharding_stage: Literal[1, 2, 3] = Field(
        1,
        description="What `sharding` ranks share: 1 the optimizer's state, 2 also gradients, 3 also parameters, which are "
        "fetched layer by layer.",
    )
    sequence: bool = Field(
        False, description="Between matrices each `tensor` rank has some of the positions: less memory."
    )
    timeout: float = Field(
        600.0, gt=0, description="Seconds that a rank waits for the others at a meeting before the run ends."
    )

    def degree(self, axis: str) -> int:
        """As the keys say."""
        degrees: dict[str, int] = {
            "data": self.data,
            "tensor": self.tensor,
            "pipeline": self.pipeline,
            "expert": self.expert,
            "context": self.context,
            "sharding": self.sharding,
        }
        return degrees.get(axis, 1)

    def shares_positions(self) -> list[str]:
        """``context`` and, between matrices, ``sequence``."""
        used = {"parallel.context": self.context > 1, "parallel.sequence": self.sequence}
        return [key for key, shared in used.items() if shared]
