"""The plain objects that the core and the plugins hand to each other.

Data classes and protocols only: no paddle and no numpy at import, no behaviour beyond what a name needs.
"""

from erniecore.types.attempts import Attempt, Scorer
from erniecore.types.decoder import DecoderBlock, DecoderPlan, Planned, Projection, RoutedExperts, Update
from erniecore.types.model import (
    Cache,
    CacheCodec,
    CausalLM,
    Features,
    Layout,
    LookingAhead,
    ModelBundle,
    PackedLayer,
    RankGroup,
    SharedWeights,
    Stages,
    StateAdapter,
    StoredWeight,
    TensorMap,
)
from erniecore.types.ranks import Piece, Ranks
from erniecore.types.records import (
    NOWHERE,
    Conversation,
    Document,
    Json,
    Message,
    Origin,
    Preference,
    Rated,
    Record,
    Role,
    ToolCall,
)
from erniecore.types.run import Cluster, Device, LossOutput, Objective, ParallelPlan, RunView, StepOutput
from erniecore.types.samples import IGNORE, Batch, Encoder, Sample
from erniecore.types.shape import DecoderShape, LayerShape
from erniecore.types.text import ChatTemplate, Segment, Tokenizer

__all__ = [
    "Attempt",
    "Batch",
    "Cache",
    "CacheCodec",
    "CausalLM",
    "ChatTemplate",
    "Cluster",
    "Conversation",
    "DecoderBlock",
    "DecoderPlan",
    "DecoderShape",
    "Device",
    "Document",
    "Encoder",
    "Features",
    "IGNORE",
    "Json",
    "LayerShape",
    "Layout",
    "LookingAhead",
    "LossOutput",
    "Message",
    "ModelBundle",
    "NOWHERE",
    "Objective",
    "Origin",
    "PackedLayer",
    "ParallelPlan",
    "Piece",
    "Planned",
    "Preference",
    "Projection",
    "RankGroup",
    "Ranks",
    "Rated",
    "Record",
    "Role",
    "RoutedExperts",
    "RunView",
    "Sample",
    "Scorer",
    "Segment",
    "SharedWeights",
    "Stages",
    "StateAdapter",
    "StepOutput",
    "StoredWeight",
    "TensorMap",
    "Tokenizer",
    "ToolCall",
    "Update",
]
