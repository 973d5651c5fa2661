"""How the next rounds shall be exchanged, decided by the coordinator from what the sites have measured (adaptive)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from erniecore_wan.payload import ELEMENT_BYTES
from erniecore_wan.rounds import Terms
from erniecore_wan.rules import Link, balanced, choose
from erniecore_wan.sparse import Sparse

#: what a site measures, without which nothing is decided
MEASURED = ("step_seconds", "up", "down", "delay", "loss")
#: a measurement beyond them is none
_SMALLEST, _LARGEST = 1e-9, 1e15


def forms_of(size: int, k: int, chunk: int) -> list[tuple[str, int, float]]:
    """(form, k, bytes of an update of ``size`` elements), from the most exact to the smallest."""
    sparse = [(("sparse", times * k, float(Sparse(times * k, chunk).num_bytes(size)))) for times in (4, 2, 1)]
    dense: list[tuple[str, int, float]] = [
        (name, 0, float(ELEMENT_BYTES[name] * size)) for name in ("float32", "bfloat16")
    ]
    return [*dense, *(one for one in sparse if one[1] <= chunk)]


def plan_of(terms: Terms, reports: Mapping[str, Mapping[str, float]], first_loss: float) -> dict[str, dict[str, Any]]:
    """Site -> ``interval``, ``form``, ``k`` and ``reason``; empty unless the run is adaptive and every site has measured.

    The slowest link and the slowest site decide; faster sites make more steps in the same time.
    """
    values = terms.values
    complete = all(_SMALLEST < report.get(key, 0) < _LARGEST for report in reports.values() for key in MEASURED)
    if not values["adaptive"] or not reports or not complete or not first_loss:
        return {}
    steps = {name: report["step_seconds"] for name, report in reports.items()}
    others = max(len(reports) - 1, 1)
    slowest = {key: min(report[key] for report in reports.values()) for key in ("up", "down")}
    if terms.secure:  # one sum comes back, however many sites there are
        others, forms = 1, [("masked", 0, float(ELEMENT_BYTES["masked"] * max(terms.sizes)))]
    else:
        forms = forms_of(max(terms.sizes), int(values["k"]), int(values["chunk"]))
    link = Link(slowest["up"], slowest["down"] / others, max(report["delay"] for report in reports.values()))
    found = choose(
        forms,
        link=link,
        step_seconds=max(steps.values()),
        overhead=float(values["overhead"]),
        cap=int(values["cap"]),
        loss=sum(report["loss"] for report in reports.values()) / len(reports),
        first_loss=first_loss,
    )
    intervals = balanced(found.interval, steps)
    common = {"form": found.form, "k": found.k, "reason": found.reason}
    return {name: {"interval": interval, **common} for name, interval in intervals.items()}
