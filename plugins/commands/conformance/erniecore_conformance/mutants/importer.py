"""Importers with one thing wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from erniecore_key_tables import KeyTable, convert_each, without

from erniecore.api import hookimpl
from erniecore.api.importer import Imported, ImportedSetting
from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.importer import TABLE, ToyImporterPlugin


class SaysNothing(ToyImporterPlugin):
    """A key of its table becomes nothing, without a reason."""

    @hookimpl
    def ernie_describe_keys(self) -> KeyTable:
        silent = without("", ("toy_color", "text", "red"))
        return replace(TABLE, groups={"Training": (*TABLE.groups["Training"][:-1], *silent)})


class Greedy(ToyImporterPlugin):
    """Takes every file for its own."""

    @hookimpl
    def ernie_match_settings(self, content: Mapping[str, Any]) -> int:
        return len(content)


class Forgetful(ToyImporterPlugin):
    """Says nothing of keys that it drops."""

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        return replace(convert_each(TABLE, content), dropped={})


class Inventive(ToyImporterPlugin):
    """Writes into a section that there is not."""

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        outcome = convert_each(TABLE, content)
        return replace(outcome, settings={**outcome.settings, "toykit.seen": ImportedSetting(True, ())})


class WritesObjects(ToyImporterPlugin):
    """A path where text is due."""

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        outcome = convert_each(TABLE, content)
        return replace(outcome, settings={**outcome.settings, "run.out": ImportedSetting(PurePath("out"), ())})


class Consuming(ToyImporterPlugin):
    """Takes keys out of what it was given."""

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        outcome = convert_each(TABLE, content)
        if isinstance(content, dict) and len(content) == 1 and "toy_color" in content:
            content["toy_color"] = "blue"
        return outcome


class Trusting(ToyImporterPlugin):
    """Computes with what it was given."""

    @hookimpl
    def ernie_import_settings(self, content: Mapping[str, Any]) -> Imported:
        if "toy_rate" in content:
            float(content["toy_rate"])
        return convert_each(TABLE, content)


MUTANTS = (
    mutant("importer_describes_every_key", SaysNothing),
    mutant("importer_recognizes_its_own", Greedy),
    mutant("importer_accounts_for_every_key", Forgetful),
    mutant("importer_writes_plain_settings", Inventive),
    mutant("importer_writes_plain_settings", WritesObjects),
    mutant("importer_is_pure", Consuming),
    mutant("importer_survives_strange_values", Trusting),
)
