"""For optimizer plugins: how gradients update the parameters. ``erniecore.api.adamw`` has the parts that need Paddle."""

from erniecore.builtin.adamw import adamw_bytes
from erniecore.config.adamw import AdamWConfig
from erniecore.plugin import OptimizerPlugin
from erniecore.sections import OptimizerConfig
from erniecore.types.optimizer import Optimizer, ParameterRole, ParameterSpec, StateBytes, TrainedParameter
from erniecore.types.process_group import ParameterState, ProcessGroup, ShardSpec

__all__ = [
    "AdamWConfig",
    "Optimizer",
    "OptimizerConfig",
    "OptimizerPlugin",
    "ParameterRole",
    "ParameterSpec",
    "ParameterState",
    "ShardSpec",
    "ProcessGroup",
    "StateBytes",
    "TrainedParameter",
    "adamw_bytes",
]
