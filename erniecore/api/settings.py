"""For tools that work on settings: read, compose, describe and import them. Imports pydantic-settings, no Paddle."""

from erniecore_catalog.retired import current_key

from erniecore.config.compose import LoadedSettings, load, read_sources
from erniecore.config.core import CORE_SECTIONS, SCHEDULES
from erniecore.config.describe import Explanation, section_keys
from erniecore.config.imported import import_file, read, refuse_unknown
from erniecore.config.problems import Known
from erniecore.config.recipes import recipes
from erniecore.config.recognize import importer_of, tables, unrecognized
from erniecore.config.resolved import resolved_text
from erniecore.config.selection import select
from erniecore.config.settings import composed, values
from erniecore.config.values import assignments, scalar
from erniecore.engine.config_hash import flatten
from erniecore.kinds import FLAG_KINDS, KINDS, MANY, RUN_KINDS

__all__ = [
    "CORE_SECTIONS", "FLAG_KINDS", "KINDS", "MANY", "RUN_KINDS", "SCHEDULES", "Explanation", "Known", "LoadedSettings",
    "assignments", "composed", "current_key", "flatten", "import_file", "importer_of", "load", "read", "read_sources",
    "recipes", "refuse_unknown", "resolved_text", "scalar", "section_keys", "select", "tables", "unrecognized", "values",
]  # fmt: skip
