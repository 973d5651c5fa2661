"""What an importer is written with: what it makes of a settings file of another toolkit. Imports no paddle.

``erniecore-key-tables`` has a base for importers: a table of the toolkit's keys, and the conversion of a file by it.
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
