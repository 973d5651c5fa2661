"""One installed plugin, as the metadata of its distribution describe it: nothing of it is imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint

from erniecore_catalog.known import known

import erniecore

OK, CONFLICT, INCOMPATIBLE = "ok", "conflict", "incompatible"
#: what our own distributions require of the core; this version is in it, so that to list them imports no ``packaging``
OUR_RANGE = ">=0.1,<0.2"


@dataclass(frozen=True, slots=True)
class Entry:
    """One installed plugin as its distribution's metadata describe it; ``rivals``: others have the same kind and name."""

    kind: str
    name: str
    target: str
    distribution: str
    version: str
    requires_core: str
    rivals: bool
    point: EntryPoint = field(repr=False, compare=False)

    @property
    def status(self) -> str:
        """``ok``, ``conflict`` or ``incompatible``. Compares versions, which help that only lists names need not wait for."""
        return INCOMPATIBLE if not _accepts_core(self.requires_core) else CONFLICT if self.rivals else OK

    @property
    def is_file(self) -> bool:
        """Whether it is a plugin of a file that nobody has installed (``plugin_files``)."""
        return self.version.startswith("sha256:")

    @property
    def is_ours(self) -> bool:
        """Whether it is a plugin of the core or of our distributions."""
        return self.distribution == "erniecore" or known().get((self.kind, self.name)) == self.distribution

    def origin(self) -> str:
        """Distribution, version and target, for errors."""
        return f"{self.distribution} {self.version} ({self.target})"


@lru_cache(maxsize=256)
def _accepts_core(required: str) -> bool:
    if required in ("", OUR_RANGE):
        return True
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(required).contains(erniecore.__version__, prereleases=True)
    except InvalidSpecifier:
        return False
