"""The settings of the strategy ``hybrid``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from erniecore.api import Field
from erniecore.api.parallel import ParallelConfig

#: one rank or several that follow each other, such as 8-15
RankRange = Annotated[str, StringConstraints(pattern=r"^\d+(-\d+)?$")]


class HybridConfig(ParallelConfig):
    """Degrees of each axis; their product is the number of processes."""

    data: int = Field(0, ge=0, description="Data-parallel size; 0: the number of processes divided by the other axes.")
    tensor: int = Field(1, ge=1, description="Tensor-parallel size: ranks that shard each matrix.")
    pipeline: int = Field(1, ge=1, description="Pipeline-parallel size: stages, each with some of the layers.")
    chunks: int = Field(
        1,
        ge=1,
        description="Virtual stages per pipeline stage (interleaved 1F1B). More of them shrink the bubble and need more "
        "messages and memory.",
    )
    split: Literal["automatic"] | list[int] = Field(
        "automatic",
        description="Number of layers of each of the pipeline x chunks virtual stages; `automatic` minimizes the cost of "
        "the most expensive one, including the head and MTP layers on the last.",
    )
    expert: int = Field(
        1, ge=1, description="Expert-parallel size: ranks that shard the experts, a divisor of data x sharding."
    )
    context: int = Field(
        1,
        ge=1,
        description="Context-parallel size: ranks that split the positions of each sequence, for long sequences.",
    )
    context_attention: Literal["gather", "ring"] = Field(
        "gather",
        description="How the `context` ranks attend to whole sequences: `gather` the keys and values of all positions in each "
        "layer, or pass them on in a `ring` while computing with those that are here: then no rank has those of a whole "
        "sequence, and messages overlap with products.",
    )
    sharding: int = Field(1, ge=1, description="Data-parallel ranks that shard the optimizer state.")
    sharding_stage: Literal[1, 2, 3] = Field(
        1,
        description="What the `sharding` ranks shard: 1 optimizer state, 2 also gradients, 3 also parameters, which are "
        "all-gathered layer by layer.",
    )
    prefetch: int = Field(
        1,
        ge=0,
        description="With `sharding_stage` 3: of how many layers the parameters are all-gathered while the layer before them "
        "computes. Each needs memory for one more layer.",
    )
    overlap_gradients: bool = Field(
        True,
        description="Sum gradients over the ranks while the backward pass goes on, as soon as they are final: the same bits "
        "as at its end.",
    )
    sequence: bool = Field(
        False,
        description="Sequence parallelism: between sharded matrices each `tensor` rank has some of the positions, which saves "
        "memory.",
    )
    micro_batches: tuple[int, ...] = Field(
        (),
        description="Micro-batches of a step for each of the data x sharding ranks, where they differ, e.g. `[4, 1]` on a "
        "fast and a slow machine; `train.accumulation` is the largest. Every token still weighs the same. Empty: "
        "`train.accumulation` for each.",
    )
    order: tuple[Literal["tensor", "context", "sharding", "data", "pipeline"], ...] = Field(
        (),
        description="Axes as ranks are counted along them, from neighboring ranks to those furthest apart, e.g. `[tensor, "
        "pipeline, data]`: pipelines within a machine, replicas on others. Axes of size 1 may be left out. Empty: tensor, "
        "context, sharding, data, pipeline.",
    )
    ranks: tuple[int | RankRange, ...] = Field(
        (),
        description="The rank at each place of the grid, counted along `order`: `[0, 2, 1, 3]` or, as ranges, `[8-15, 0-7]`. "
        "Ranks are numbered as the launcher starts them, machine by machine; `ernie plan --cluster` finds a good order. "
        "Empty: rank 0 at the first place, and so on.",
    )
    timeout: float = Field(
        600.0, gt=0, description="Seconds that a rank waits for the others in a collective before the run ends."
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

    @property
    def rings(self) -> bool:
        """Whether keys and values go around."""
        return self.context > 1 and self.context_attention == "ring"

    def async_groups(self) -> dict[str, list[str]]:
        """Group of a placement -> for what its collectives go on while ranks compute; see ``placement.Placements``."""
        stage = self.sharding_stage if self.sharding > 1 else 0
        gradients = ["gradients"] if self.overlap_gradients else []
        if stage < 2:
            return {"reduce": gradients}
        ahead = ["prefetch"] if stage == 3 and self.prefetch else []
        return {"sharding": [*gradients, *ahead], "replicas": gradients}

    def shards_positions(self) -> list[str]:
        """``context`` and, between matrices, ``sequence``."""
        used = {"parallel.context": self.context > 1, "parallel.sequence": self.sequence}
        return [key for key, shared in used.items() if shared]

    def fixes_trained(self) -> list[str]:
        """``sharding_stage`` from 2 on."""
        return ["parallel.sharding_stage"] if self.sharding > 1 and self.sharding_stage > 1 else []
