"""The section of the launcher ``elastic-nodes``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from erniecore.api import Field
from erniecore.api.launcher import LauncherConfig


class ElasticNodesConfig(LauncherConfig):
    """Section of the launcher ``elastic-nodes``. ``nodes`` is the number for which the settings are written: the batch of
    a step is that of ``train`` and ``parallel`` on so many, whoever is there."""

    nodes: int = Field(
        2, ge=1, description="Nodes for which `train` and `parallel` are written; the run starts with so many."
    )
    min_nodes: int = Field(1, ge=1, description="Fewest nodes on which the run goes on; with fewer it waits.")
    max_nodes: int = Field(0, ge=0, description="Most nodes that take part; others wait as spares. 0: as `nodes`.")
    restarts: int = Field(3, ge=0, description="Failures in a row without a new checkpoint after which the run ends.")
    join: bool = Field(False, description="This node joins the run that the first node, at `master`, leads.")
    master: str = Field("", description="HOST:PORT where the first node listens.")
    secret_file: str = Field(
        "", description="File with the secret that the machines share, at least 16 bytes; empty: `$ERNIECORE_SECRET`."
    )
    insecure: bool = Field(
        False, description="Let machines join over a network without a secret: anyone who reaches the port may."
    )
    patience: float = Field(
        600.0, gt=0, description="Seconds to wait for the first `nodes`, and for `min_nodes` after a loss."
    )
    settle: float = Field(
        5.0, ge=0, description="Seconds to wait for further nodes once one has joined, so that one change takes in all."
    )
    exclude_slow: bool = Field(
        False,
        description="Machines with ranks that the callback `slow-ranks` names leave the run, but for the first one.",
    )
    layout: Literal["same", "planned"] = Field(
        "same",
        description="Layout for the ranks that are there. `same`: that of `parallel`, with more or fewer data-parallel ranks; "
        "`planned`: the one that `ernie plan` finds fastest.",
    )
    cluster: Path | None = Field(None, description="Cluster file with the accelerators, for `layout: planned`.")
