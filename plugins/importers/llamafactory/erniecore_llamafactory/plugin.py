"""The plugin object of the importer for LLaMA-Factory. The table and the conversion are imported when a file is asked about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from erniecore.api import Plugin, hookimpl

if TYPE_CHECKING:
    from erniecore_key_tables import KeyTable

    from erniecore.api.importer import Imported, ImportTarget


class LlamaFactoryImporter(Plugin):
    """Settings files of LLaMA-Factory."""

    kind, name = "importer", "llamafactory"
    summary = "Settings files of LLaMA-Factory, with its dataset_info.json"

    @hookimpl
    def ernie_match_settings(self, content: Mapping[str, Any]) -> int:
        """Known arguments of a flat file that has one of LLaMA-Factory's telling ones."""
        from erniecore_llamafactory.table import TABLE

        return TABLE.match(content)

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any], target: ImportTarget) -> Imported:
        """What each argument becomes; looks at ``dataset_info.json`` and at the config.json of the model directory."""
        from erniecore_key_tables.model_config import config_json

        from erniecore_llamafactory.convert import convert
        from erniecore_llamafactory.datasets import read_info
        from erniecore_llamafactory.draft import Surroundings

        directory = content.get("dataset_dir")
        info = read_info(directory if isinstance(directory, str) and directory else "data")
        config = config_json(content.get("model_name_or_path"))
        return convert(content, Surroundings(target.device, target.dtypes, config, info))

    @hookimpl
    def ernie_describe_keys(self) -> KeyTable:
        """The table of LLaMA-Factory's arguments."""
        from erniecore_llamafactory.table import TABLE

        return TABLE


plugin = LlamaFactoryImporter()
