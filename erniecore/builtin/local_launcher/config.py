"""The section of the launcher ``local``."""

from __future__ import annotations

from erniecore.sections import Field, LauncherConfig


class LocalConfig(LauncherConfig):
    """Section of the launcher ``local``."""

    node_rank: int = Field(0, ge=0, description="Which of the nodes this is, from 0; differs on every node.")
    master: str = Field(
        "", description="HOST:PORT of the first node, where the others connect; needed with several nodes."
    )
