"""The section of the launcher ``local``."""

from __future__ import annotations

from erniecore.sections import Field, LauncherConfig


class LocalConfig(LauncherConfig):
    """Section of the launcher ``local``."""

    node_rank: int = Field(0, ge=0, description="Which of the nodes this is, from 0; differs on every node.")
    master: str = Field(
        "", description="HOST:PORT of the first node, where the others connect; needed with several nodes."
    )
    secret_file: str = Field(
        "", description="File with the secret that the machines share, at least 16 bytes; empty: `$ERNIECORE_SECRET`."
    )
    insecure: bool = Field(
        False, description="Let machines join over a network without a secret: anyone who reaches the port may."
    )
