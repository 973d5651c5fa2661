"""Reads the settings files of a toolkit with three keys."""

from collections.abc import Mapping
from typing import Any

from erniecore_key_tables import KeyTable, convert_each, renamed, without

from erniecore.api import Plugin, hookimpl
from erniecore.api.importer import Imported

TABLE = KeyTable(
    "Acme",
    "1.0",
    {
        "Training": (
            renamed("peak_lr", "number", 1e-3, "train.learning_rate"),
            renamed("num_updates", "whole", 100, "train.max_steps"),
            *without("the console always shows progress", ("progress_bar", "flag", True)),
        ),
    },
    frozenset({"peak_lr"}),
    "Acme has no such key",
)


class AcmePlugin(Plugin):
    """One table describes, recognizes and converts the keys."""

    kind, name, summary = "importer", "acme", "settings files of Acme"

    @hookimpl
    def ernie_match_settings(self, content: Mapping[str, Any]) -> int:
        return TABLE.match(content)

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        return convert_each(TABLE, content)

    @hookimpl
    def ernie_describe_keys(self) -> KeyTable:
        return TABLE


plugin = AcmePlugin()
