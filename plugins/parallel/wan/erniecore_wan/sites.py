"""What a coordinator knows of its sites, and the rules by which it waits for them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Life:
    """When rounds begin and close.

    Attributes:
        quorum: updates without which no round closes. limit: seconds after the first update of a round.
        start: sites that have joined before the first round closes.
    """

    quorum: int = 1
    limit: float = 600.0
    start: int = 1


@dataclass
class Status:
    """What is known of a site.

    Attributes:
        state: ``expected``, ``late``, ``left``. round: of its last update. samples: of all its updates.
        up, down: bytes. seen: clock. lag: seconds of its last update behind the first of the round.
        report: its last measurements.
    """

    state: str = "expected"
    round: int = -1
    samples: float = 0.0
    up: int = 0
    down: int = 0
    seen: float = 0.0
    lag: float = 0.0
    report: dict[str, float] = field(default_factory=dict)
