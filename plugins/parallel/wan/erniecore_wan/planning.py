"""What wide-area training costs before it begins: bytes and seconds of a round over the slowest link, how many steps must lie
between two rounds, and which method a list of sites wants. The rule that recommends is the one that decides in adaptive runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erniecore.api import Field, Section
from erniecore_wan.deciding import forms_of
from erniecore_wan.payload import ELEMENT_BYTES
from erniecore_wan.rules import Link, balanced, choose, fewest_steps, utilization

#: bytes per second of a megabit per second
MEGABIT = 1e6 / 8


class SiteEntry(Section):
    """A site in a file of sites."""

    up: float = Field(gt=0, le=1e9, description="Megabits per second from the site.")
    down: float = Field(gt=0, le=1e9, description="Megabits per second to the site.")
    delay: float = Field(0.05, ge=0, le=1e6, description="Seconds of a round trip to the coordinator.")
    step_seconds: float = Field(0.0, ge=0, le=1e6, description="Seconds of a training step; 0: as --step-seconds says.")


@dataclass(frozen=True, slots=True)
class Sites:
    """Who takes part.

    Attributes:
        steps: seconds of a step of each site. links: of each site; ``down`` is shared by what all others send.
    """

    steps: Mapping[str, float]
    links: Mapping[str, Link]

    @property
    def others(self) -> int:
        """Updates that a site receives in a round."""
        return len(self.links) - 1

    def round_seconds(self, size: float, received: float) -> tuple[float, str]:
        """Seconds of a round of the slowest site that sends ``size`` bytes and receives ``received``, and its name."""
        return max((link.seconds(size, received), name) for name, link in self.links.items())

    @property
    def step(self) -> float:
        """Seconds of a step of the slowest site: others make more steps in the same time."""
        return max(self.steps.values())


@dataclass(frozen=True, slots=True)
class Option:
    """A way to exchange updates.

    Attributes:
        name: of the method. settings: those that choose it. size, received: bytes of a round, each way.
        seconds: of a round. slowest: the site that needs them. interval: steps between two rounds of the same weights.
        used: share of the time in which sites compute, at that interval.
    """

    name: str
    settings: Mapping[str, Any]
    size: float
    received: float
    seconds: float
    slowest: str
    interval: int
    used: float

    @property
    def bytes_per_step(self) -> float:
        """That a site sends, per step."""
        return self.size / self.interval


def options(parameters: int, sites: Sites, *, overhead: float, cap: int, fragments: int = 4) -> list[Option]:
    """The methods, from the most exact to the one that sends least.

    Args:
        parameters: that are exchanged. overhead: share of the time that exchanges may take. cap: longest interval.
        fragments: of streaming.
    """
    found = [_synchronous(parameters, sites)]
    for form, k, size in forms_of(parameters, 64, 4096):
        settings: dict[str, Any] = {"form": form, **({"k": k} if k else {})}
        name = f"SparseLoCo, k = {k}" if k else f"DiLoCo, {form}"
        found.append(_rounds(name, settings, size, sites.others * size, sites, overhead, cap))
    masked = float(ELEMENT_BYTES["masked"] * parameters)
    found.insert(2, _rounds("DiLoCo, masked", {"secure": True}, masked, masked, sites, overhead, cap))
    found.insert(4, _streaming(parameters, sites, cap, fragments))
    return found


def _synchronous(parameters: int, sites: Sites) -> Option:
    size = 4.0 * parameters
    seconds, slowest = sites.round_seconds(size, sites.others * size)
    return Option(
        "synchronous", {}, size, sites.others * size, seconds, slowest, 1, utilization(1, sites.step, seconds)
    )


def _rounds(
    name: str, settings: Mapping[str, Any], size: float, received: float, sites: Sites, overhead: float, cap: int
) -> Option:
    seconds, slowest = sites.round_seconds(size, received)
    interval = min(fewest_steps(sites.step, seconds, overhead), cap)
    used = utilization(interval, sites.step, seconds)
    return Option(name, settings, size, received, seconds, slowest, interval, used)


def _streaming(parameters: int, sites: Sites, cap: int, fragments: int) -> Option:
    """Exchanges of a fragment that pass while training goes on cost nothing."""
    size = 4.0 * parameters / fragments
    seconds, slowest = sites.round_seconds(size, sites.others * size)
    overlap = fewest_steps(sites.step, seconds, 0.5)  # as many steps as the exchange takes
    interval = min(fragments * (overlap + 1), cap)
    hidden = min(seconds, max(interval // fragments - 1, 0) * sites.step)
    used = utilization(interval // fragments, sites.step, seconds - hidden)
    settings = {"fragments": fragments, "overlap": overlap}
    return Option(
        "streaming, float32",
        settings,
        fragments * size,
        fragments * sites.others * size,
        seconds,
        slowest,
        interval,
        used,
    )


def recommended(parameters: int, sites: Sites, *, overhead: float, cap: int) -> tuple[dict[str, Any], str]:
    """Settings for all sites and ``interval`` of each, and why: the first form with which an interval of at most ``cap`` steps
    keeps the overhead, as an adaptive run decides before its loss falls."""
    _, slowest = sites.round_seconds(4.0 * parameters, 4.0 * sites.others * parameters)
    link = sites.links[slowest]
    found = choose(
        forms_of(parameters, 64, 4096),
        link=Link(link.up, link.down / max(sites.others, 1), link.delay),
        step_seconds=sites.step,
        overhead=overhead,
        cap=cap,
        loss=1.0 / cap**2,  # a loss that allows no more steps than the link needs
        first_loss=1.0,
    )
    settings: dict[str, Any] = {"form": found.form, **({"k": found.k} if found.k else {})}
    settings["interval"] = balanced(found.interval, sites.steps)
    return settings, found.reason.partition(";")[0]


def sites_of(entries: Mapping[str, SiteEntry], step_seconds: float) -> Sites:
    """The sites of a file; ``step_seconds``: of those that say none."""
    steps = {name: entry.step_seconds or step_seconds for name, entry in entries.items()}
    links = {name: Link(entry.up * MEGABIT, entry.down * MEGABIT, entry.delay) for name, entry in entries.items()}
    return Sites(steps, links)


def columns(found: Sequence[Option]) -> list[tuple[str, ...]]:
    """Rows of the table: method, sent and received per round, seconds of a round, interval, share of the time, sent per step."""
    from erniecore.api.planning import seconds_text, size_text

    return [
        (
            one.name,
            size_text(one.size),
            size_text(one.received),
            seconds_text(one.seconds),
            str(one.interval),
            f"{one.used:.1%}",
            size_text(one.bytes_per_step),
        )
        for one in found
    ]
