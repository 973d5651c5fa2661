"""The settings of the strategy ``wan``. What decides the common anchor must be the same at every site; the coordinator checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from erniecore.api import ConfigError, Field
from erniecore.api.parallel import ParallelConfig
from erniecore_wan.inner import Inner, inner_of

if TYPE_CHECKING:
    from erniecore_wan.outer import Outer
    from erniecore_wan.sparse import Sparse


class WanConfig(ParallelConfig):
    """One site of several that train one model."""

    coordinator: str = Field("", description="HOST:PORT of `ernie wan serve`.")
    key: str = Field("", description="Private key of this site, by `ernie wan keys`; its certificate lies beside it.")
    certificate: str = Field("", description="Certificate of the coordinator.")
    inner: dict[str, Any] = Field(
        {"name": "single"},
        description="Strategy within the site: `name`, and its own settings, such as `inner.tensor=2`.",
    )
    interval: int = Field(50, ge=1, description="Steps of this site between two exchanges of the same weights (H).")
    payload: list[str] = Field(
        [],
        description="Patterns of the trained parameters that are exchanged; none: all of them. Others stay the site's own.",
    )
    averaged: list[str] = Field(
        ["*.e_score_correction_bias"],
        description="Patterns of parameters that training moves without the optimizer, such as the balance bias of routers: "
        "where their router is exchanged, sites go on with their mean, whatever the outer optimizer is.",
    )
    fragments: int = Field(
        1, ge=1, description="Fragments of the weights, one of which is exchanged at a time (streaming DiLoCo)."
    )
    overlap: int = Field(
        0, ge=0, description="Steps that the site trains on while an exchange is on its way; 0: it waits."
    )
    mixing: float = Field(
        1.0, gt=0, le=1, description="Share of the common weights in what the site goes on with; the rest is its own."
    )
    outer: Literal["sgd", "nesterov", "adam"] = Field(
        "nesterov", description="Outer optimizer on the averaged differences from the anchor."
    )
    outer_rate: float = Field(0.7, gt=0, description="Learning rate of the outer optimizer; `sgd` with 1: LocalSGD.")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of `nesterov`, first decay of `adam`.")
    form: Literal["float32", "bfloat16", "sparse"] = Field(
        "float32",
        description="How updates travel; `sparse`: the largest values of each chunk in two bits (SparseLoCo).",
    )
    k: int = Field(64, ge=1, description="Values of each chunk that a sparse update has.")
    chunk: int = Field(4096, ge=2, le=65536, description="Elements of a chunk.")
    error_decay: float = Field(0.95, ge=0, le=1, description="Decay of what sparse updates have left out so far.")
    clip: float = Field(
        0.0, ge=0, description="Longest update that counts in full, in median norms of its round; 0: any length."
    )
    secure: bool = Field(
        False,
        description="Updates are masked: the coordinator learns their sum alone (secure aggregation); all travel in 4 bytes.",
    )
    peers: list[str] = Field([], description="Certificates of the other sites, for `secure`.")
    adaptive: bool = Field(
        False, description="The coordinator chooses interval and form from what the sites measure of links and losses."
    )
    overhead: float = Field(0.1, gt=0, lt=1, description="Share of the time for exchanges that `adaptive` aims at.")
    cap: int = Field(500, ge=1, description="Longest interval that `adaptive` may choose.")
    timeout: float = Field(
        3600.0, gt=0, description="Seconds without a connection to the coordinator after which the run ends."
    )

    @property
    def strategy(self) -> Inner:
        """The strategy within the site, with its settings."""
        return inner_of(self.inner)

    @property
    def outer_rule(self) -> Outer:
        """The outer optimizer with its settings."""
        from erniecore_wan.outer import Outer

        return Outer(self.outer, self.outer_rate, self.outer_momentum)

    def sparse_rule(self, k: int = 0) -> Sparse:
        """Sparse updates with ``k`` values of each chunk; 0: as the settings say."""
        from erniecore_wan.sparse import Sparse

        return Sparse(k or self.k, self.chunk, decay=self.error_decay)

    def degree(self, axis: str) -> int:
        return self.strategy.config.degree(axis)

    def shards_positions(self) -> Sequence[str]:
        return self.strategy.config.shards_positions()

    def fixes_trained(self) -> Sequence[str]:
        return self.strategy.config.fixes_trained()

    def check(self) -> None:
        """Raises ``ConfigError`` for what cannot be together, or is missing."""
        for key in ("coordinator", "key", "certificate"):
            if not {"coordinator": self.coordinator, "key": self.key, "certificate": self.certificate}[key]:
                raise ConfigError.at(
                    f"parallel.{key}", "a site needs it; `ernie wan keys` and `ernie wan serve` say what"
                )
        if self.secure:
            self._check_secure()
        if self.k > self.chunk:
            raise ConfigError.at("parallel.k", f"a chunk has {self.chunk} values only (parallel.chunk)")
        if self.interval < self.fragments:
            raise ConfigError.at("parallel.interval", f"{self.fragments} fragments need at least as many steps")
        if self.overlap and self.overlap >= self.interval // self.fragments:
            raise ConfigError.at(
                "parallel.overlap", "an exchange must arrive before the next one begins: less than interval / fragments"
            )
        if self.mixing < 1 and not self.overlap:
            raise ConfigError.at(
                "parallel.mixing", "only weights that moved on meanwhile can be mixed: set parallel.overlap"
            )

    def _check_secure(self) -> None:
        """Raises ``ConfigError`` for what a coordinator cannot do that sees no single update."""
        if not self.peers:
            raise ConfigError.at("parallel.peers", "parallel.secure needs the certificates of the other sites")
        if self.form != "float32":
            raise ConfigError.at("parallel.form", f"masked updates have no {self.form} form; leave it out")
        if self.clip:
            raise ConfigError.at("parallel.clip", "a masked update cannot be shortened; leave it out")
