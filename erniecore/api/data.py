"""For format plugins, encoders and row readers: records, samples and batches. Imports no Paddle."""

from erniecore import codes
from erniecore.plugin import CorpusPlugin, DecompressorPlugin, FormatPlugin, HubPlugin, RowReaderPlugin, SchemePlugin
from erniecore.sections import FormatConfig
from erniecore.types.records import (
    IMAGE_MARKER,
    MARKERS,
    VIDEO_MARKER,
    Conversation,
    Document,
    Json,
    Media,
    Message,
    Origin,
    Preference,
    Record,
    Role,
    ToolCall,
    UnpairedPreference,
    messages_of,
)
from erniecore.types.samples import IGNORE, Batch, Draw, Encoder, MediaReader, Sample, SeenMedia, media_reader

__all__ = [
    "FormatConfig",
    "FormatPlugin",
    "HubPlugin",
    "Batch",
    "Conversation",
    "CorpusPlugin",
    "DecompressorPlugin",
    "Document",
    "Draw",
    "Encoder",
    "IGNORE",
    "IMAGE_MARKER",
    "MARKERS",
    "VIDEO_MARKER",
    "Json",
    "Media",
    "MediaReader",
    "Message",
    "Origin",
    "Preference",
    "UnpairedPreference",
    "Record",
    "Role",
    "RowReaderPlugin",
    "Sample",
    "SchemePlugin",
    "SeenMedia",
    "ToolCall",
    "codes",
    "media_reader",
    "messages_of",
]
