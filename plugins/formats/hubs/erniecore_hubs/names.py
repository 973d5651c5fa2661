"""Names on a hub: ``hf:owner/name`` or ``ms:owner/name``, with ``@revision``, and of a data set ``:split`` or ``/file``. Behind
all of it may stand another host with the interface of the hub: ``?endpoint=https://host``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from erniecore.api import UsageError

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<hub>[a-z][a-z0-9-]*):(//)?(?P<id>{_PART}/{_PART})(@(?P<revision>[\w.-]+))?((?P<split>:\w+)|/(?P<file>.+?))?"
    r"(\?endpoint=(?P<endpoint>https?://[^?#@\s]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubName:
    """A parsed name.

    Attributes:
        id: ``owner/name``. revision: a branch, a tag or a commit; empty: the newest.
        split: with its colon, or empty. file: a path or pattern in the repository, or empty.
        endpoint: URL of the host that the name has; empty: the user's.
    """

    hub: str
    id: str
    revision: str = ""
    split: str = ""
    file: str = ""
    endpoint: str = ""

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit."""
        return _COMMIT.fullmatch(self.revision) is not None

    def at(self, commit: str) -> HubName:
        """The same at a commit."""
        return replace(self, revision=commit)

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        host = f"?endpoint={self.endpoint}" if self.endpoint else ""
        return f"{self.hub}:{self.id}{revision}{self.split}{'/' + self.file if self.file else ''}{host}"


def parse(name: str, *, model: bool) -> HubName:
    """Of ``hf:owner/name…`` or ``hf://owner/name…``. Raises ``UsageError``: no such name, or one of a data set for a model."""
    found = _NAME.fullmatch(name)
    hub = name.partition(":")[0]
    expected = f"{hub}:owner/name or {hub}:owner/name@revision" + ("" if model else ", then :split or /file")
    if found is None or ".." in name or (model and (found["split"] or found["file"])):
        raise UsageError("this is no name on a hub", found=name, expected=expected)
    endpoint = (found["endpoint"] or "").rstrip("/")
    return HubName(
        found["hub"], found["id"], found["revision"] or "", found["split"] or "", found["file"] or "", endpoint
    )
