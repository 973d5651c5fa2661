"""A conversion of an ERNIEKit file under way, and what its outcome depends on besides the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from erniecore_key_tables import Draft, KeyTable

from erniecore.api.importer import ImportTarget
from erniecore_erniekit.table import TABLE


@dataclass(frozen=True, slots=True)
class Surroundings(ImportTarget):
    """What the outcome may depend on besides the file.

    Attributes:
        config: content of the model directory's config.json; None without a directory.
    """

    config: Mapping[str, Any] | None = None


@dataclass(kw_only=True)
class ErniekitDraft(Draft):
    """The state of a conversion; the functions of ``convert_*.py`` fill it."""

    table: KeyTable = TABLE
    around: Surroundings = field(default_factory=Surroundings)
