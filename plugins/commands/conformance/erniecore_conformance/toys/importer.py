"""Reads the settings files of a toolkit with four keys. The conformance kit checks itself with it, and the reference page of
`erniecore.api.importer` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from erniecore_key_tables import KeyTable, convert_each, renamed, without

from erniecore.api import Plugin, hookimpl
from erniecore.api.importer import Imported

TABLE = KeyTable(
    "Toykit",
    "1.0",
    {
        "Training": (
            renamed("toy_rate", "number", 0.1, "train.learning_rate"),
            renamed("toy_steps", "whole", 10, "train.max_steps"),
            renamed("toy_data", "list", None, "data.train"),
            *without("colors do not matter", ("toy_color", "text", "red")),
        )
    },
    frozenset({"toy_rate", "toy_steps"}),
    "Toykit has no such key",
)


class ToyImporterPlugin(Plugin):
    """One table describes, recognizes and converts the keys."""

    kind = "importer"
    name = "toy"
    summary = "settings of a toolkit for the conformance kit"

    @hookimpl
    def ernie_match_settings(self, content: Mapping[str, Any]) -> int:
        return TABLE.match(content)

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        return convert_each(TABLE, content)

    @hookimpl
    def ernie_describe_keys(self) -> KeyTable:
        return TABLE


plugin = ToyImporterPlugin()
