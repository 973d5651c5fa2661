"""``ernie plan --cards``: a prepared run as a job, the cluster of the user's words, and what the search found as text and
JSON. No paddle. The arithmetic is in ``erniecore.planning``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore import registry
from erniecore.accelerators import AcceleratorPlugin
from erniecore.accelerators.profile import Card
from erniecore.engine.preparation.outlook import duration, number, work_of
from erniecore.engine.preparation.plan import BYTES
from erniecore.errors import ConfigError, UsageError, did_you_mean
from erniecore.host import assemble
from erniecore.planning.clusters import ASSUMED_SHARE, GB, Cluster, Machines, read_cluster, uniform
from erniecore.planning.jobs import Job
from erniecore.planning.layout_search import Found, Layout, search, sizes_of
from erniecore.planning.layouts import Degrees, Options
from erniecore.planning.rates import best_rate, identity, links_file, rates_file, read_links, read_rates
from erniecore.types import Cluster as Processes
from erniecore.units import size_text

if TYPE_CHECKING:
    from erniecore.engine.preparation.prepare import Prepared
    from erniecore.types import DecoderShape

#: cards of one kind are taken to sit in machines of this many
PER_MACHINE = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """The words: ``cards`` of type ``card``, or all of a cluster file."""

    cards: int = 0
    card: str = ""
    file: Path | None = None


def job_of(ready: Prepared, cards: int) -> Job | None:
    """What is trained, per row and parameter; None where the model does not say what its layers are like. A step has as
    many rows as if each of ``cards`` cards had the settings' own."""
    shape = ready.host.hook.ernie_decoder_shape(architecture=ready.architecture)
    if shape is None:
        return None
    plan, train, work = ready.plan, ready.settings.train, work_of(ready)
    trained = plan.parameters.trainable
    base = plan.parameters.total - (trained if plan.parameters.adapted else 0)
    own = trained * BYTES[train.precision] if plan.parameters.adapted else 0
    return Job(
        shape=shape,
        length=work.length,
        micro=train.batch_size,
        rows=train.batch_size * train.accumulation * cards,
        element=work.element,
        weight=(plan.weights - own) / base,
        gradient=plan.gradients / trained,
        moments=plan.moments / trained,
        master=(plan.masters + plan.average) / trained,
        adapter=trained if plan.parameters.adapted else None,
        ranks=work.ranks,
        copies=1 if plan.reference and not plan.parameters.adapted else 0,
        forward=1 if ready.reference != "none" else 0,
        loss_chunk=train.loss_chunk,
    )


def cluster_of(ready: Prepared, wanted: Wanted, environ: Mapping[str, str]) -> Cluster:
    """The machines that the words name.

    Raises:
        UsageError: an unknown card, a cluster file that is none, or more cards than it has.
    """
    if wanted.file is not None:
        cluster = read_cluster(_document(wanted.file), str(wanted.file))
        if wanted.cards > cluster.size:
            raise UsageError(f"the cluster has {cluster.size} cards", where="--cards", found=str(wanted.cards))
        return cluster.first(wanted.cards) if wanted.cards else cluster
    return uniform(wanted.cards, _card(ready, wanted, environ))


def _document(path: Path) -> Any:
    from erniecore.config.yaml import parse

    try:
        return parse(path.read_text(encoding="utf-8"), str(path)).data
    except (OSError, ValueError) as error:
        raise UsageError("the cluster file cannot be read", where=str(path), found=str(error)) from error


def _card(ready: Prepared, wanted: Wanted, environ: Mapping[str, str]) -> Machines:
    precision = ready.settings.train.precision
    rates = read_rates(rates_file(environ))
    if not wanted.card:
        if ready.device.name != "cpu":
            raise UsageError("which card?", where="--card", expected="a name, MEMORY:TFLOPS, or --cluster FILE")
        rate = best_rate(rates, "cpu", precision, identity(ready.device.describe()))
        if rate is None:
            raise UsageError("this processor was not measured", fix="ernie bench matmul")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // wanted.cards
        own = Machines(1, wanted.cards, "a process on this processor", memory, rate.flops / wanted.cards)
        links = [
            link for link in read_links(links_file(environ)) if (link.device, link.processes) == ("cpu", wanted.cards)
        ]
        return replace(own, link=links[-1].bandwidth, latency=links[-1].latency) if links else own
    size, colon, tflops = wanted.card.partition(":")
    try:
        if colon:
            return Machines(1, PER_MACHINE, wanted.card, int(float(size) * GB), float(tflops) * 1e12 * ASSUMED_SHARE)
    except ValueError:
        raise UsageError("not MEMORY:TFLOPS", where="--card", found=wanted.card, expected="such as 64:256") from None
    name, card = _known_card(wanted.card)
    measured = [r.flops for r in rates if r.dtype == precision and name in r.machine]
    peak = card.tflops.get(precision) or max(card.tflops.values())
    return Machines(
        1, PER_MACHINE, name, card.memory, max(measured, default=peak * 1e12 * ASSUMED_SHARE), card.bandwidth
    )


def _known_card(word: str) -> tuple[str, Card]:
    cards = {
        name: card
        for plugin in registry.loadable("device")
        if isinstance(plugin, AcceleratorPlugin)
        for name, card in plugin.profile.cards.items()
    }
    found = [name for name in cards if word.lower() in name.lower()]
    if len(found) != 1:
        raise UsageError(
            "no such card" if not found else "several cards have this name",
            where="--card",
            found=word,
            expected="one of " + ", ".join(sorted(found or cards)) + ", or MEMORY:TFLOPS such as 64:256",
            fix=did_you_mean(word, cards),
        )
    return found[0], cards[found[0]]


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """What to print."""

    job: Job
    cluster: Cluster
    found: Found

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; ``total`` of time and memory beside their parts."""
        found = self.found
        single = {"fastest": found.fastest, "cheapest": found.cheapest, "roomiest": found.roomiest}
        several = {"runners_up": found.runners_up, "too_large": found.too_large}
        return {
            "cards": self.cluster.size,
            "tokens_per_step": self.job.rows * self.job.length,
            "tried": found.tried,
            **{name: layout and _json(layout) for name, layout in single.items()},
            **{name: [_json(layout) for layout in layouts] for name, layouts in several.items()},
        }

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) for the console."""
        found, best = self.found, self.found.fastest
        if best is None:
            lines = [("layout", f"none of {found.tried} fits on {self.cluster.size} cards; what lacks least:")]
            return [*lines, *(("", self._line(layout)) for layout in found.too_large)]
        lines = [("fastest", self._line(best)), ("", f"time: {time_text(best)}"), ("", f"memory: {memory_text(best)}")]
        lines += [("", f"settings: {settings_text(best)}")]
        for name, other in (("cheapest", found.cheapest), ("fits", found.roomiest)):
            assert other is not None
            lines.append((name, "the same" if other == best else self._line(other)))
        lines += [("next", f"{self._line(layout)}; {difference(layout, best)}") for layout in found.runners_up]
        lines += [("too big", self._line(layout)) for layout in found.too_large]
        return [*lines, ("note", "times rank layouts; nothing of them was measured on these cards")]

    def _line(self, layout: Layout) -> str:
        rate = number(self.job.rows * self.job.length / layout.time.total).replace(" ", "")
        room = f"{size_text(layout.free)} free" if layout.fits else f"lacks {size_text(-layout.free)}"
        return f"{degrees_text(layout)}: {duration(layout.time.total)} per step, {rate} tokens/s, {room}"


def _json(layout: Layout) -> dict[str, Any]:
    body = asdict(layout)
    body["time"]["total"], body["memory"]["total"] = layout.time.total, layout.memory.total
    return {**body, "fits": layout.fits, "settings": settings_text(layout)}


def degrees_text(layout: Layout) -> str:
    """``96 cards: tensor 4, pipeline 12, sharding 2 (stage 2), recompute full``."""
    parts = [f"{name} {size}" for name, size in asdict(layout.degrees).items() if size > 1]
    option = layout.options
    parts = [f"{p} (stage {option.stage})" if p.startswith("sharding") else p for p in parts]
    parts += [f"recompute {option.recompute}"] if option.recompute != "none" else []
    parts += ["sequence"] if option.sequence else []
    parts += ["optimizer in host memory"] if option.offload else []
    return f"{layout.cards} card{'s' * (layout.cards > 1)}" + (f", {', '.join(parts)}" if parts else "")


def time_text(layout: Layout) -> str:
    """Parts of a step by size."""
    parts = sorted(asdict(layout.time).items(), key=lambda part: -part[1])
    return ", ".join(
        f"{name} {value / layout.time.total:.0%}" for name, value in parts if value / layout.time.total > 0.005
    )


def memory_text(layout: Layout) -> str:
    """Parts of the fullest card."""
    parts = [(name, size) for name, size in asdict(layout.memory).items() if size and name != "host"]
    text = " | ".join(f"{name} {size_text(size)}" for name, size in parts) + f" = {size_text(layout.memory.total)}"
    return text + (f"; host {size_text(layout.memory.host)} per card" if layout.memory.host else "")


def settings_text(layout: Layout) -> str:
    """The words that give ``ernie run`` this layout."""
    found = [f"parallel.{name}={size}" for name, size in asdict(layout.degrees).items() if size > 1]
    found += [f"parallel.sharding_stage={layout.options.stage}"] if layout.degrees.sharding > 1 else []
    found += ["parallel.sequence=true"] if layout.options.sequence else []
    found += ["train.optimizer_offload=true"] if layout.options.offload else []
    return " ".join([*found, f"train.recompute={layout.options.recompute}"])


def difference(layout: Layout, best: Layout) -> str:
    """Why a layout is slower than the best: the part that grew most."""
    own, other = asdict(layout.time), asdict(best.time)
    name = max(own, key=lambda part: own[part] - other[part])
    slower = layout.time.total / best.time.total - 1
    return f"{slower:.1%} slower, {name} +{duration(own[name] - other[name])}"


def layout_plan(ready: Prepared, wanted: Wanted, environ: Mapping[str, str] | None = None) -> LayoutPlan | None:
    """Search the layouts of a prepared run; None where its model does not say what its layers are like."""
    cluster = cluster_of(ready, wanted, os.environ if environ is None else environ)
    job = job_of(ready, cluster.size)
    if job is None:
        return None
    sizes = list(worth_trying(cluster))
    found = search(job, cluster, sizes, accelerator=ready.device.name != "cpu", may=runnable(job.shape))
    return LayoutPlan(job, cluster, found)


def runnable(shape: DecoderShape) -> Callable[[Degrees, Options], bool]:
    """Whether a layout of such a model runs: what the first installed strategy with all the axes says. All of them where
    none is installed."""
    axes = {field.name for field in fields(Degrees)}
    installed = registry.loadable("parallel")
    strategy = next((plugin for plugin in installed if axes <= plugin.Config.model_fields.keys()), None)
    if strategy is None:
        return lambda chosen, option: True
    host, config = assemble({"parallel": strategy}), strategy.Config

    @cache
    def planned(chosen: Degrees, stage: int, sequence: bool) -> bool:
        words = {"config": config.model_validate({**asdict(chosen), "sharding_stage": stage, "sequence": sequence})}
        try:
            host.call(strategy, "ernie_plan_parallel", **words, cluster=Processes(world_size=chosen.size), shape=shape)
        except ConfigError:
            return False
        return True

    return lambda chosen, option: planned(chosen, option.stage, option.sequence)


def worth_trying(cluster: Cluster) -> Iterator[int]:
    """Numbers of cards: all, and halves of them down to one; what is not a whole number of machines is left out."""
    possible, size = set(sizes_of(cluster)), cluster.size
    yield size
    while size % 2 == 0 and size > 1:
        size //= 2
        if size in possible:
            yield size
