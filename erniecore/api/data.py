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
    Rated,
    Record,
    Role,
    Sample,
    ToolCall,
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
    "Rated",
    "Record",
    "Role",
    "RowReaderPlugin",
    "Sample",
    "SchemePlugin",
    "ToolCall",
    "codes",
]
