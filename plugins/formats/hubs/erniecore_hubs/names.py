"""Names on a hub: ``hf:owner/name`` or ``ms:owner/name``, with ``@revision``, and of a data set ``:split`` or ``/file``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from erniecore.api import UsageError

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<hub>[a-z][a-z0-9-]*):(//)?(?P<id>{_PART}/{_PART})(@(?P<revision>[\w.-]+))?((?P<split>:\w+)|/(?P<file>.+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """A parsed name.

    Attributes:
        id: ``owner/name``. revision: a branch, a tag or a commit; empty: the newest.
        split: with its colon, or empty. file: a path or pattern in the repository, or empty.
    """

    hub: str
    id: str
    revision: str = ""
    split: str = ""
    file: str = ""

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> HubName:
        """The same at a commit."""
        return replace(self, revision=commit)

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.hub}:{self.id}{revision}{self.split}{'/' + self.file if self.file else ''}"


def parse(name: str, *, model: bool) -> HubName:
    """Of ``hf:owner/name…`` or ``hf://owner/name…``. Raises ``UsageError``: no such name, or one of a data set for a model."""
    found = _NAME.fullmatch(name)
    hub = name.partition(":")[0]
    expected = f"{hub}:owner/name or {hub}:owner/name@revision" + ("" if model else ", then :split or /file")
    if found is None or ".." in name or (model and (found["split"] or found["file"])):
        raise UsageError("this is no name on a hub", found=name, expected=expected)
    return HubName(found["hub"], found["id"], found["revision"] or "", found["split"] or "", found["file"] or "")
