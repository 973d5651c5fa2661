"""For parallel strategies: shard one model over several processes."""

from erniecore.capabilities import ParallelCapability
from erniecore.engine.process_group import SingleProcess
from erniecore.plugin import ParallelPlugin
from erniecore.sections import ParallelConfig
from erniecore.types.model import Features, Layout, PackedLayer, RankGroup, ShardableWeights, Stages
from erniecore.types.process_group import ParameterState, ProcessGroup, ShardSpec
from erniecore.types.run import Cluster, ParallelPlan, StepOutput
from erniecore.types.samples import Batch
from erniecore.types.shape import DecoderShape, LayerShape
from erniecore.types.sharding import ShardedIds, ShardedMask, ShardedParameter, ShardedVocabulary

__all__ = [
    "ParameterState",
    "ShardedIds",
    "ShardedMask",
    "ShardedParameter",
    "ShardedVocabulary",
    "ParallelCapability",
    "ParallelConfig",
    "ParallelPlugin",
    "Batch",
    "Cluster",
    "DecoderShape",
    "Features",
    "LayerShape",
    "Layout",
    "PackedLayer",
    "ParallelPlan",
    "ShardSpec",
    "RankGroup",
    "ProcessGroup",
    "ShardableWeights",
    "SingleProcess",
    "Stages",
    "StepOutput",
]
