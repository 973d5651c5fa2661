"""For importer plugins: convert settings files of other toolkits. Imports no Paddle.

``erniecore-key-tables`` has the base of an importer: a table of keys that describes, recognizes and converts a file.
"""

from erniecore.types.importing import (
    ForeignKey,
    ForeignKeys,
    Imported,
    ImportedSetting,
    ImportNote,
    ImportTarget,
    NoteKind,
)

__all__ = ["ForeignKey", "ForeignKeys", "ImportNote", "ImportTarget", "Imported", "ImportedSetting", "NoteKind"]
