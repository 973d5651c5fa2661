"""``ernie plan --accelerators``: the cluster that the flags name, the strategy whose layouts are searched, and what was
found, as text and JSON. No paddle. The arithmetic is in ``layout_search``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from erniecore_accelerators import AcceleratorPlugin, AcceleratorSpec

from erniecore.api import UsageError, counted, install_command
from erniecore.api.command import did_you_mean, layout_spaces, loadable_plugins, read_yaml
from erniecore.api.planning import LayoutSpace, ParallelLayout, PlannedRun, seconds_text, size_text
from erniecore_planner.allowed import AllowedSpace
from erniecore_planner.clusters import ASSUMED_SHARE, GB, Cluster, Machines, read_cluster, uniform
from erniecore_planner.divided import options_of
from erniecore_planner.jobs import Job, job_of
from erniecore_planner.layout_search import Assessed, Found, assess, search, sizes_of
from erniecore_planner.links import Links
from erniecore_planner.placed_layouts import place, placed_search
from erniecore_planner.rates import best_rate, identity, links_file, rates_file, read_links, read_rates
from erniecore_planner.text import flops_text
from erniecore_planner.traffic import Traffic, shown_map
from erniecore_planner.work import work_of

#: accelerators of one kind are taken to sit in machines of this many
PER_MACHINE = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """The words: ``accelerators`` of type ``accelerator``, or all of a cluster file."""

    accelerators: int = 0
    accelerator: str = ""
    file: Path | None = None


def cluster_of(run: PlannedRun, wanted: Wanted, environ: Mapping[str, str]) -> Cluster:
    """The machines that the words name.

    Raises:
        UsageError: an unknown accelerator, a cluster file that is none, or more accelerators than it has.
    """
    if wanted.file is not None:
        cluster = read_cluster(_document(wanted.file), str(wanted.file))
        if wanted.accelerators > cluster.size:
            raise UsageError(
                f"the cluster has {counted(cluster.size, 'accelerator')}",
                where="--accelerators",
                found=str(wanted.accelerators),
            )
        return cluster.first(wanted.accelerators) if wanted.accelerators else cluster
    return uniform(wanted.accelerators, _accelerator(run, wanted, environ))


def _document(path: Path) -> Any:
    try:
        return read_yaml(path)
    except (OSError, ValueError) as error:
        raise UsageError("the cluster file cannot be read", where=str(path), found=str(error)) from error


def _accelerator(run: PlannedRun, wanted: Wanted, environ: Mapping[str, str]) -> Machines:
    precision = run.train.precision
    rates = read_rates(rates_file(environ))
    if not wanted.accelerator:
        if not run.device.is_host:
            raise UsageError(
                "which accelerator?", where="--accelerator", expected="a name, MEMORY:TFLOPS, or --cluster FILE"
            )
        rate = best_rate(rates, "cpu", precision, identity(run.device.describe()))
        if rate is None:
            raise UsageError("this processor was not measured", fix="ernie bench matmul")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // wanted.accelerators
        own = Machines(1, wanted.accelerators, "a process on this processor", memory, rate.flops / wanted.accelerators)
        links = [
            link
            for link in read_links(links_file(environ))
            if (link.device, link.processes) == ("cpu", wanted.accelerators)
        ]
        return replace(own, link=links[-1].bandwidth, latency=links[-1].latency) if links else own
    size, colon, tflops = wanted.accelerator.partition(":")
    try:
        if colon:
            return Machines(
                1, PER_MACHINE, wanted.accelerator, int(float(size) * GB), float(tflops) * 1e12 * ASSUMED_SHARE
            )
    except ValueError:
        raise UsageError(
            "not MEMORY:TFLOPS", where="--accelerator", found=wanted.accelerator, expected="such as 64:256"
        ) from None
    name, accelerator = _known_accelerator(wanted.accelerator)
    measured = [r.flops for r in rates if r.dtype == precision and name in r.machine]
    peak = accelerator.tflops.get(precision) or max(accelerator.tflops.values())
    return Machines(
        1,
        PER_MACHINE,
        name,
        accelerator.memory,
        max(measured, default=peak * 1e12 * ASSUMED_SHARE),
        accelerator.bandwidth,
    )


def _known_accelerator(word: str) -> tuple[str, AcceleratorSpec]:
    accelerators = {
        name: accelerator
        for plugin in loadable_plugins("device")
        if isinstance(plugin, AcceleratorPlugin)
        for name, accelerator in plugin.profile.accelerators.items()
    }
    found = [name for name in accelerators if word.lower() in name.lower()]
    if len(found) != 1:
        raise UsageError(
            "no such accelerator" if not found else "several accelerators have this name",
            where="--accelerator",
            found=word,
            expected="one of " + ", ".join(sorted(found or accelerators)) + ", or MEMORY:TFLOPS such as 64:256",
            fix=did_you_mean(word, accelerators),
        )
    return found[0], accelerators[found[0]]


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """What to print.

    Attributes:
        strategy: the parallel strategy whose layouts these are. given: the degrees of the settings, if they are for several
            ranks, with these at the best places, and with the micro-batches of the settings. given_rows: of its step.
    """

    job: Job
    cluster: Cluster
    found: Found
    strategy: str
    space: AllowedSpace
    given: Assessed | None = None
    given_rows: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain JSON; ``total`` of time and memory beside their parts."""
        found = self.found
        single = {"fastest": found.fastest, "cheapest": found.cheapest, "lowest_memory": found.lowest_memory}
        single |= {"given": self.given}
        several = {"runners_up": found.runners_up, "too_large": found.too_large}
        return {
            "accelerators": self.cluster.size,
            "tokens_per_step": self.job.rows * self.job.length,
            "tried": found.tried,
            "strategy": self.strategy,
            "refused": list(self.space.refused),
            **{name: layout and self._json(layout) for name, layout in single.items()},
            **{name: [self._json(layout) for layout in layouts] for name, layouts in several.items()},
        }

    def lines(self) -> list[tuple[str, str]]:
        """(label, text) for the console."""
        refused = [("note", f"not tried, as this run refuses it: {name}") for name in self.space.refused]
        return [*self._lines(), *refused]

    def _lines(self) -> list[tuple[str, str]]:
        found, best = self.found, self.found.fastest
        if best is None:
            lines = [
                *self._given(),
                ("layout", f"none of {found.tried} fits on {self.cluster.size} accelerators; what lacks least:"),
            ]
            return [*lines, *(("", self._line(layout)) for layout in found.too_large)]
        lines = [
            *self._given(),
            ("fastest", self._line(best)),
            ("", f"time: {time_text(best)}"),
            ("", f"memory: {memory_text(best)}"),
        ]
        lines += [("", f"settings: {settings_text(self.space, best)}"), *self._places(best)]
        for name, other in (("cheapest", found.cheapest), ("memory", found.lowest_memory)):
            assert other is not None
            lines.append((name, "the same" if other == best else self._line(other)))
        lines += [("next", f"{self._line(layout)}; {difference(layout, best)}") for layout in found.runners_up]
        lines += [("too big", self._line(layout)) for layout in found.too_large]
        return [*lines, ("note", "times rank layouts; nothing of them was measured on these accelerators")]

    def _given(self) -> list[tuple[str, str]]:
        """The degrees of the settings."""
        if self.given is None:
            return []
        settings = f"settings: {settings_text(self.space, self.given)}"
        return [("given", self._line(self.given, self.given_rows)), ("", settings), *self._places(self.given)]

    def _places(self, best: Assessed) -> list[tuple[str, str]]:
        """What goes over which links, and which ranks are where."""
        found = best.placement
        if found is None:
            return []
        before = f"{seconds_text(found.seconds)} per step; {seconds_text(found.file_order)} in the order of the file"
        gain = f"{before} ({found.file_order / found.seconds:.2f} x)" if best.layout.order or best.layout.ranks else ""
        lines = [("places", gain or "in the order of the file, which no other beats by 0.1 %")]
        lines += [("", traffic_text(traffic)) for traffic in found.traffic]
        links = Links(self.cluster.first(best.accelerators))
        return [*lines, *(("", line) for line in shown_map(best.layout, links, np.array(found.at)))]

    def _json(self, layout: Assessed) -> dict[str, Any]:
        body = asdict(layout)
        body["time"]["total"], body["memory"]["total"] = layout.time.total, layout.memory.total
        settings = settings_text(self.space, layout)
        return {**body, "degrees": layout.layout.degrees, "fits": layout.fits, "settings": settings}

    def _line(self, layout: Assessed, rows: int = 0) -> str:
        rate = flops_text((rows or self.job.rows) * self.job.length / layout.time.total).replace(" ", "")
        room = f"{size_text(layout.free)} free" if layout.fits else f"lacks {size_text(-layout.free)}"
        return f"{degrees_text(layout)}: {seconds_text(layout.time.total)} per step, {rate} tokens/s, {room}"


def traffic_text(sent: Traffic) -> str:
    """``tensor: 12.3 GiB per rank and step at 250 GB/s within machines, 0.05 s``."""
    where = "within machines" if sent.machines == 1 else f"over {sent.machines} machines"
    rate = f"at {sent.rate / GB:.3g} GB/s {where}"
    return f"{sent.axis}: {size_text(round(sent.size))} per rank and step {rate}, {seconds_text(sent.seconds)}"


def degrees_text(found: Assessed) -> str:
    """``96 accelerators: tensor 4, pipeline 12, sharding 2 (stage 2), recompute full``."""
    layout, option = found.layout, found.options
    parts = [f"{name} {size}" for name, size in layout.degrees.items() if size > 1]
    parts = [f"{p} (stage {layout.sharding_stage})" if p.startswith("sharding") else p for p in parts]
    parts += [f"recompute {option.recompute}"] if option.recompute != "none" else []
    parts += ["sequence"] if layout.sequence else []
    parts += ["optimizer in host memory"] if option.offload else []
    return f"{found.accelerators} accelerator{'s' * (found.accelerators > 1)}" + (
        f", {', '.join(parts)}" if parts else ""
    )


def time_text(layout: Assessed) -> str:
    """Parts of a step by size."""
    parts = sorted(asdict(layout.time).items(), key=lambda part: -part[1])
    return ", ".join(
        f"{name} {value / layout.time.total:.0%}" for name, value in parts if value / layout.time.total > 0.005
    )


def memory_text(layout: Assessed) -> str:
    """Parts of the fullest accelerator."""
    parts = [(name, size) for name, size in asdict(layout.memory).items() if size and name != "host"]
    text = " | ".join(f"{name} {size_text(size)}" for name, size in parts) + f" = {size_text(layout.memory.total)}"
    return text + (f"; host {size_text(layout.memory.host)} per accelerator" if layout.memory.host else "")


def settings_text(space: LayoutSpace, found: Assessed) -> str:
    """The settings that give ``ernie run`` this layout."""
    args = [*space.overrides(found.layout)]
    args += [f"train.accumulation={max(found.layout.shares)}"] if found.layout.shares else []
    args += ["optimizer.offload=true"] if found.options.offload else []
    return " ".join([*args, f"train.recompute={found.options.recompute}"])


def difference(layout: Assessed, best: Assessed) -> str:
    """Why a layout is slower than the best: the part that grew most."""
    own, other = asdict(layout.time), asdict(best.time)
    name = max(own, key=lambda part: own[part] - other[part])
    slower = layout.time.total / best.time.total - 1
    return f"{slower:.1%} slower, {name} +{seconds_text(own[name] - other[name])}"


def layout_plan(
    run: PlannedRun,
    wanted: Wanted,
    environ: Mapping[str, str] | None = None,
    *,
    rows: int = 0,
    accepts: Callable[[str, Sequence[str]], bool] = lambda strategy, settings: True,
) -> LayoutPlan | None:
    """Search the layouts of a planned run; None where its model does not say what its layers are like.

    Args:
        rows: of a step, for layouts of exactly the wanted number of accelerators, which may share them unevenly; 0: as many
            for each accelerator as the settings say, on fewer accelerators too.
        accepts: whether the run would be accepted with a strategy and further settings.

    Raises:
        UsageError: flags that name no cluster, or no installed strategy runs on so many processes.
    """
    cluster = cluster_of(run, wanted, os.environ if environ is None else environ)
    job = job_of(run, work_of(run), cluster.size)
    if job is None:
        return None
    strategy, published = strategy_for(run, job, cluster.size)
    space = AllowedSpace(published, partial(accepts, strategy))
    sizes = [cluster.size] if rows else list(worth_trying(cluster))
    job = replace(job, rows=rows or job.rows)
    on_accelerator = not run.device.is_host
    if rows:  # for whoever is there, on machines that nobody listed in this order
        found = search(job, space, cluster, sizes, on_accelerator=on_accelerator, uneven=True)
    else:
        found = placed_search(job, space, cluster, sizes, on_accelerator=on_accelerator)
    micro_batches = sum(run.layout.shares) or run.train.accumulation * run.layout.data_size
    own = replace(job, rows=run.train.batch_size * micro_batches)
    given = given_layout(run, own, space, cluster) if not rows and strategy == run.names["parallel"] else None
    return LayoutPlan(job, cluster, found, strategy, space, given, own.rows)


def given_layout(run: PlannedRun, job: Job, space: LayoutSpace, cluster: Cluster) -> Assessed | None:
    """The degrees of the settings, with their ranks at the best places; None for one rank, and where there are fewer
    accelerators."""
    chosen: ParallelLayout = run.layout
    if not 1 < chosen.size <= cluster.size:
        return None
    part, option = cluster.first(chosen.size), options_of(run)
    on_accelerator = not run.device.is_host
    found = assess(job, part, chosen, option, on_accelerator=on_accelerator)
    return place(job, space, Links(part), found, on_accelerator=on_accelerator)


def strategy_for(run: PlannedRun, job: Job, processes: int) -> tuple[str, LayoutSpace]:
    """The run's own parallel strategy if it can use so many processes, else the first installed one that can."""
    own = [(run.names["parallel"], run.layouts)] if run.layouts is not None else []
    for name, space in (*own, *layout_spaces(job.shape)):
        if any(True for _ in space.layouts(processes)):
            return name, space
    raise UsageError(
        f"no installed parallel strategy runs on {counted(processes, 'process')}",
        next=install_command("erniecore-hybrid-parallel"),
    )


def worth_trying(cluster: Cluster) -> Iterator[int]:
    """Numbers of accelerators: all, and halves of them down to one; what is not a whole number of machines is left out."""
    possible, size = set(sizes_of(cluster)), cluster.size
    yield size
    while size % 2 == 0 and size > 1:
        size //= 2
        if size in possible:
            yield size
