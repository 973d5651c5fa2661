"""Everything that plugins, examples and tests of plugins may import; nothing else of the core is public.

Light names are imported here; names that need numpy or paddle are resolved on first use. The surface with its
signatures is frozen in ``tests/architecture/api_surface.txt``, so a change of it is a visible diff.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from erniecore.accelerators import (
    DECLARED,
    Accelerator,
    AcceleratorConfig,
    AcceleratorPlugin,
    Card,
    Profile,
    Variable,
)
from erniecore.config.section import Field, Section
from erniecore.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceUnavailable,
    EnvironmentFault,
    ErnieError,
    Exit,
    MemoryFault,
    NumericsError,
    PluginError,
    Problem,
    RowError,
    UsageError,
    nearest,
    shorten,
)
from erniecore.plugin import EmptyConfig, ModelPlugin, Plugin, ScorerConfig, hookimpl
from erniecore.quiet import importing_paddle
from erniecore.types import (
    IGNORE,
    Attempt,
    Batch,
    Cache,
    CacheCodec,
    CausalLM,
    ChatTemplate,
    Cluster,
    Conversation,
    DecoderBlock,
    DecoderPlan,
    DecoderShape,
    Device,
    Document,
    Encoder,
    Features,
    Json,
    LayerShape,
    Layout,
    LookingAhead,
    LossOutput,
    Message,
    ModelBundle,
    Objective,
    Origin,
    PackedLayer,
    ParallelPlan,
    Piece,
    Planned,
    Preference,
    Projection,
    RankGroup,
    Ranks,
    Rated,
    Record,
    RoutedExperts,
    RunView,
    Sample,
    Scorer,
    Segment,
    SharedWeights,
    Stages,
    StateAdapter,
    StepOutput,
    StoredWeight,
    TensorMap,
    Tokenizer,
    ToolCall,
    Update,
)

if TYPE_CHECKING:
    from erniecore import ops as ops
    from erniecore.checkpoint.arrays import read_arrays as read_arrays
    from erniecore.checkpoint.arrays import write_arrays as write_arrays
    from erniecore.checkpoint.floats import read_tensors as read_tensors
    from erniecore.checkpoint.floats import write_tensors as write_tensors
    from erniecore.data.collate import collate as collate
    from erniecore.data.records import read_records as read_records
    from erniecore.data.template import JinjaChatTemplate as JinjaChatTemplate
    from erniecore.data.tokenizer import SentencePieceTokenizer as SentencePieceTokenizer
    from erniecore.data.turns import Answer as Answer
    from erniecore.data.turns import Rendered as Rendered
    from erniecore.data.turns import Turns as Turns
    from erniecore.data.turns import shortened as shortened
    from erniecore.engine.arrays import share_memory as share_memory
    from erniecore.engine.entry import open_model as open_model
    from erniecore.engine.generation.rollout import Rollout as Rollout
    from erniecore.engine.generation.rollout import attempts_of as attempts_of
    from erniecore.engine.generation.rollout import roll_out as roll_out
    from erniecore.engine.generation.sampling import Sampling as Sampling
    from erniecore.engine.metrics import add as add_metrics
    from erniecore.engine.models.lowering import projection_of as projection_of
    from erniecore.engine.models.lowering import untouched as untouched
    from erniecore.engine.models.score_head import add_score_head as add_score_head
    from erniecore.engine.processes.supervise import free_port as free_port
    from erniecore.engine.seed import derive_seed as derive_seed
    from erniecore.engine.step import step_totals as step_totals
    from erniecore.engine.training.next_token import NextTokenObjective as NextTokenObjective
    from erniecore.engine.training.recompute import recompute as recompute

#: name -> (module, attribute or None for the module itself)
_LAZY: dict[str, tuple[str, str | None]] = {
    "ops": ("erniecore.ops", None),
    "JinjaChatTemplate": ("erniecore.data.template", "JinjaChatTemplate"),
    "SentencePieceTokenizer": ("erniecore.data.tokenizer", "SentencePieceTokenizer"),
    "Answer": ("erniecore.data.turns", "Answer"),
    "Rendered": ("erniecore.data.turns", "Rendered"),
    "Turns": ("erniecore.data.turns", "Turns"),
    "shortened": ("erniecore.data.turns", "shortened"),
    "NextTokenObjective": ("erniecore.engine.training.next_token", "NextTokenObjective"),
    "add_metrics": ("erniecore.engine.metrics", "add"),
    "add_score_head": ("erniecore.engine.models.score_head", "add_score_head"),
    "open_model": ("erniecore.engine.entry", "open_model"),
    "projection_of": ("erniecore.engine.models.lowering", "projection_of"),
    "untouched": ("erniecore.engine.models.lowering", "untouched"),
    "read_records": ("erniecore.data.records", "read_records"),
    "recompute": ("erniecore.engine.training.recompute", "recompute"),
    "Rollout": ("erniecore.engine.generation.rollout", "Rollout"),
    "Sampling": ("erniecore.engine.generation.sampling", "Sampling"),
    "attempts_of": ("erniecore.engine.generation.rollout", "attempts_of"),
    "roll_out": ("erniecore.engine.generation.rollout", "roll_out"),
    "collate": ("erniecore.data.collate", "collate"),
    "derive_seed": ("erniecore.engine.seed", "derive_seed"),
    "free_port": ("erniecore.engine.processes.supervise", "free_port"),
    "share_memory": ("erniecore.engine.arrays", "share_memory"),
    "step_totals": ("erniecore.engine.step", "step_totals"),
    "read_arrays": ("erniecore.checkpoint.arrays", "read_arrays"),
    "write_arrays": ("erniecore.checkpoint.arrays", "write_arrays"),
    "read_tensors": ("erniecore.checkpoint.floats", "read_tensors"),
    "write_tensors": ("erniecore.checkpoint.floats", "write_tensors"),
}

__all__ = [
    "DECLARED",
    "IGNORE",
    "Accelerator",
    "AcceleratorConfig",
    "AcceleratorPlugin",
    "Answer",
    "Attempt",
    "Batch",
    "Cache",
    "CacheCodec",
    "Card",
    "CausalLM",
    "ChatTemplate",
    "CheckpointError",
    "Cluster",
    "ConfigError",
    "Conversation",
    "DataError",
    "DecoderBlock",
    "DecoderPlan",
    "DecoderShape",
    "Device",
    "DeviceUnavailable",
    "Document",
    "EmptyConfig",
    "Encoder",
    "EnvironmentFault",
    "ErnieError",
    "Exit",
    "Features",
    "Field",
    "JinjaChatTemplate",
    "Json",
    "LayerShape",
    "Layout",
    "LookingAhead",
    "LossOutput",
    "MemoryFault",
    "Message",
    "ModelBundle",
    "ModelPlugin",
    "NextTokenObjective",
    "NumericsError",
    "Objective",
    "Origin",
    "PackedLayer",
    "ParallelPlan",
    "Piece",
    "Planned",
    "Plugin",
    "PluginError",
    "Preference",
    "Problem",
    "Profile",
    "Projection",
    "RankGroup",
    "Ranks",
    "Rated",
    "Record",
    "Rendered",
    "Rollout",
    "RoutedExperts",
    "RowError",
    "RunView",
    "Sample",
    "Sampling",
    "Scorer",
    "ScorerConfig",
    "Section",
    "Segment",
    "SentencePieceTokenizer",
    "SharedWeights",
    "Stages",
    "StateAdapter",
    "StepOutput",
    "StoredWeight",
    "TensorMap",
    "Tokenizer",
    "ToolCall",
    "Turns",
    "Update",
    "UsageError",
    "Variable",
    "add_metrics",
    "add_score_head",
    "attempts_of",
    "collate",
    "derive_seed",
    "free_port",
    "hookimpl",
    "nearest",
    "open_model",
    "ops",
    "projection_of",
    "read_arrays",
    "read_records",
    "read_tensors",
    "recompute",
    "roll_out",
    "shorten",
    "shortened",
    "share_memory",
    "step_totals",
    "untouched",
    "write_arrays",
    "write_tensors",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'erniecore.api' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    with importing_paddle():
        module = import_module(module_name)
    return module if attribute is None else getattr(module, attribute)
