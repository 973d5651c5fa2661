"""What the page adds to a plan of a draft: what is free on this machine, which changes would fit, steps that come from epochs."""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore.api.installation import host_memory
from erniecore_webui.actions import Actions, printed_json
from erniecore_webui.drafts import Told, Verdict, arguments, check_paths, draft_file, source_paths, told_of
from erniecore_webui.settings_files import check_size
from erniecore_webui.site import Site
from erniecore_webui.yaml_edits import flat, read

#: bytes of rows that are tokenized to count steps; seconds for which the memory of accelerators is believed
_COUNTED, _FRESH = 16 << 20, 60
_ACCELERATORS = 100_000
#: what tokens and rows of a run depend on
_ABOUT_DATA = ("data.", "model.", "method.", "formats.")


@dataclass(frozen=True, slots=True)
class Smaller:
    """A change of settings (``section.key=value`` each) with which the run needs less; ``fits``: None where nobody knows what is
    free."""

    settings: tuple[str, ...]
    need: int
    fits: bool | None


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory of a run on its device in bytes: what it needs, what there is (None: not known), and changes that need less."""

    need: int | None
    free: int | None
    smaller: tuple[Smaller, ...]

    @property
    def too_much(self) -> bool:
        """Whether it does not fit."""
        return self.need is not None and self.free is not None and self.need > self.free


def needs_of(plan: Mapping[str, Any]) -> Needs:
    """What a plan (``ernie plan --smaller --json``) says of memory, beside what this machine has."""
    device = str(plan.get("device"))
    # on a CPU the process is what must fit, on an accelerator what it allocates
    key = "process_memory" if device == "cpu" else "peak_memory"
    memory = host_memory() if device == "cpu" else None
    free = memory.available if memory else accelerator_memory(device, int(time.monotonic() // _FRESH))
    need = (plan.get("estimate") or {}).get(key) or (plan.get("forecast") or {}).get("peak_memory")
    rows = tuple(
        Smaller(tuple(row["settings"]), row[key], None if free is None else row[key] <= free)
        for row in plan.get("smaller") or ()
    )
    return Needs(need, free, rows)


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """A layout over several accelerators, as settings.

    Attributes:
        name: ``fastest``, ``cheapest`` or ``lowest_memory``.
        need, free: bytes of each accelerator. seconds: of a step.
    """

    name: str
    settings: tuple[str, ...]
    accelerators: int
    need: int
    free: int
    seconds: float


def layouts(site: Site, text: str, number: str, kind: str) -> tuple[list[LayoutRow], list[Told]]:
    """Layouts of a draft over at most ``number`` accelerators of a kind, by ``ernie plan --accelerators``; and what is wrong."""
    try:
        if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= _ACCELERATORS):
            raise UsageError("this is no number of accelerators", found=number, expected=f"1 to {_ACCELERATORS}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9:. _-]{0,40}", kind):
            raise UsageError(
                "this is no accelerator", found=kind[:80], expected="a name such as H100, or MEMORY:TFLOPS"
            )
        check_size(text)
        check_paths(site, read(text), (site.home, site.state / "drafts"))
    except UsageError as error:
        return [], [told_of(error.fields())]
    more = ("--accelerators", number, "--accelerator", kind)
    with draft_file(site, text) as path:
        result = site.actions.asked("plan", str(path), *more, "--json")
    found = printed_json(result.output)
    if isinstance(found, dict) and "error" in found:
        return [], [told_of(found["error"]).renamed(str(path), "settings")]
    if not isinstance(found, dict):
        return [], [Told("", result.output.strip()[:2000])]
    return list(_layouts(found)), []


def _layouts(found: Mapping[str, Any]) -> Iterator[LayoutRow]:
    seen = set()
    for name in ("fastest", "cheapest", "lowest_memory"):
        row = found.get(name)
        if row and row["settings"] not in seen:
            seen.add(row["settings"])
            settings = (f"parallel.name={found['strategy']}", *shlex.split(row["settings"]))
            yield LayoutRow(
                name, settings, row["accelerators"], row["memory"]["total"], row["free"], row["time"]["total"]
            )


@lru_cache(maxsize=8)
def accelerator_memory(device: str, _moment: int = 0) -> int | None:
    """Bytes of the smallest accelerator of this machine; None: not known. Only NVIDIA's tool is asked."""
    if device != "cuda":
        return None
    command = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return min(int(line) for line in done.stdout.split()) << 20
    return None


def steps_from_epochs(site: Site, text: str, plan: Mapping[str, Any], epochs: float) -> int | None:
    """Steps of a run whose settings give epochs, from its tokenized rows; None: they are too many to be counted while somebody
    types, or cannot be read."""
    length = (plan.get("estimate") or {}).get("sequence_length")
    per_step = plan.get("tokens_per_step")
    said = printed_json(_said_of_rows(site, text))
    found = said.get("tokens") if isinstance(said, dict) else None
    if not length or not per_step or not isinstance(found, dict) or not found.get("samples"):
        return None
    values = flat(read(text))
    packing = str(values.get("data.packing", "greedy"))
    fill = found.get("fill_rate", {}).get(packing)
    packed = fill and packing != "none"
    sequences = float(math.ceil(found["tokens"] / (fill * length) - 1e-6) if packed else found["samples"])
    sequences *= 1 - float(values.get("data.eval_fraction", 0))
    at_once = max(1, round(per_step / length))
    return int(max(1, math.ceil(sequences * epochs / at_once - 1e-6)))


def problems_of_rows(site: Site, text: str) -> Verdict:
    """What is wrong with the rows to train on, as far as they are few enough to be read while somebody types."""
    said = printed_json(_said_of_rows(site, text))
    if not isinstance(said, dict) or said.get("event") != "error":
        return Verdict()
    # whatever the command says of them, the field names the files
    return Verdict(errors={"data.train": [told_of(said["error"])]})


def _said_of_rows(site: Site, text: str) -> str:
    """What ``ernie data stats`` says of the rows; ``""``: there are none, or too many."""
    files = [str(Path(name)) for name in source_paths(read(text), "data.train")]
    try:
        known = tuple(
            (name, facts.st_size, facts.st_mtime_ns) for name in files for facts in [(site.home / name).stat()]
        )
    except OSError:
        return ""
    if not files or sum(size for _, size, _ in known) > _COUNTED:
        return ""
    given = tuple(a for a in arguments(text) if a.startswith(_ABOUT_DATA) and not a.startswith("data.eval="))
    return _stats(site.actions, given, known)


@lru_cache(maxsize=64)
def _stats(actions: Actions, given: tuple[str, ...], files: tuple[tuple[str, int, int], ...]) -> str:
    """``files``: it is asked again when they change."""
    return actions.asked("data", "stats", *given, "--json").output
