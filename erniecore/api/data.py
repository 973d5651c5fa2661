"""What a format, an encoder and a reader of rows are written with: records, samples and batches. Imports no paddle."""

from erniecore import codes
from erniecore.plugin import CorpusPlugin, DecompressorPlugin, FormatPlugin, RowReaderPlugin, SchemePlugin
from erniecore.sections import FormatConfig
from erniecore.types import (
    IGNORE,
    Batch,
    Conversation,
    Document,
    Encoder,
    Json,
    Message,
    Origin,
    Preference,
    Record,
    Role,
    Sample,
    ToolCall,
    UnpairedPreference,
)

__all__ = [
    "FormatConfig",
    "FormatPlugin",
    "Batch",
    "Conversation",
    "CorpusPlugin",
    "DecompressorPlugin",
    "Document",
    "Encoder",
    "IGNORE",
    "Json",
    "Message",
    "Origin",
    "Preference",
    "UnpairedPreference",
    "Record",
    "Role",
    "RowReaderPlugin",
    "Sample",
    "SchemePlugin",
    "ToolCall",
    "codes",
]
