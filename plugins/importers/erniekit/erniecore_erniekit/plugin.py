"""The plugin object of the importer for ERNIEKit. The table and the conversion are imported when a file is asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from erniecore.api import Plugin, hookimpl

if TYPE_CHECKING:
    from erniecore_key_tables import KeyTable

    from erniecore.api.importer import Imported, ImportTarget


class ErniekitImporter(Plugin):
    """Settings files of ERNIEKit."""

    kind, name = "importer", "erniekit"
    summary = "Settings files of ERNIEKit"

    @hookimpl
    def ernie_match_settings(self, content: Mapping[str, Any]) -> int:
        """Known keys of a flat file that has one of ERNIEKit's telling ones."""
        from erniecore_erniekit.table import TABLE

        return TABLE.match(content)

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any], target: ImportTarget) -> Imported:
        """What each key becomes; looks at the config.json of the model directory."""
        from erniecore_key_tables.model_config import config_json

        from erniecore_erniekit.convert import convert
        from erniecore_erniekit.draft import Surroundings

        config = config_json(content.get("model_name_or_path"))
        return convert(content, Surroundings(target.device, target.dtypes, config))

    @hookimpl
    def ernie_describe_keys(self) -> KeyTable:
        """The table of ERNIEKit's keys."""
        from erniecore_erniekit.table import TABLE

        return TABLE


plugin = ErniekitImporter()
