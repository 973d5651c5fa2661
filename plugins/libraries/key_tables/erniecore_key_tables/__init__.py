"""The keys of another toolkit as a table, and the conversion of a file by it: the base of importers. ``table`` describes
keys, ``values`` reads single values, ``draft`` holds the state of one conversion, ``convert`` runs it, ``reference`` writes the
page of the table, ``model_config`` reads the config.json of a model. Imports no plugin, knows no toolkit.
"""

from erniecore_key_tables.convert import SECTIONS, convert, convert_each
from erniecore_key_tables.draft import Draft
from erniecore_key_tables.table import Key, KeyTable, Left, ignored, only, part, renamed, without
from erniecore_key_tables.values import one_of

__all__ = [
    "SECTIONS", "Draft", "Key", "KeyTable", "Left",
    "convert", "convert_each", "ignored", "one_of", "only", "part", "renamed", "without",
]  # fmt: skip
