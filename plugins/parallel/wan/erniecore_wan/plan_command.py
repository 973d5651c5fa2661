"""``ernie wan plan``: reads the sites and counts the parameters of a run; ``planning.py`` has the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore.api.command import (
    Chosen,
    load_settings,
    planned_run,
    plugin_settings,
    read_yaml,
    show,
    show_json,
    show_table,
    split_arguments,
)
from erniecore.api.planning import count_text
from erniecore_wan.planning import SiteEntry, Sites, columns, options, recommended, sites_of

#: heads of the table
_HEADS = ("method", "sent", "received", "a round", "interval", "computes", "sent a step")


def show_wan_plan(
    args: list[str] | None,
    chosen: Chosen,
    file: Path,
    parameters: int,
    step_seconds: float,
    overhead: float,
    cap: int,
    as_json: bool,
) -> None:
    """Print what each method costs between the sites of ``file``, and what the rule recommends.

    Raises:
        UsageError: the file is none, or something is missing. ConfigError: of a key in it.
    """
    sites = _sites(file, step_seconds)
    count = parameters or _trained(args, chosen)
    found = options(count, sites, overhead=overhead, cap=cap)
    settings, reason = recommended(count, sites, overhead=overhead, cap=cap)
    if as_json:
        show_json(
            {
                "parameters": count,
                "options": [{**asdict(one), "bytes_per_step": one.bytes_per_step} for one in found],
                "recommended": settings,
                "reason": reason,
            }
        )
        return
    slowest = found[0].slowest
    show(f"{count_text(count)} parameters exchanged by {len(sites.links)} sites; {slowest} is the slowest to exchange")
    show_table(_HEADS, columns(found))
    common = " ".join(f"parallel.{key}={value}" for key, value in settings.items() if key != "interval")
    show(f"recommended: {common}", *(f"  {name}: parallel.interval={h}" for name, h in settings["interval"].items()))
    show(f"because {reason}")


def _trained(args: list[str] | None, chosen: Chosen) -> int:
    file, overrides = split_arguments(args)
    if file is None and not overrides and not chosen:
        raise UsageError(
            "how many parameters are exchanged?",
            where="ernie wan plan",
            next="add --parameters, or the settings of a run",
        )
    run, _ = planned_run(load_settings(file, overrides, chosen))
    return run.plan.parameters.trainable


def _sites(file: Path, step_seconds: float) -> Sites:
    try:
        document = read_yaml(file)
    except (OSError, ValueError) as error:
        raise UsageError("the file of sites cannot be read", where=str(file), found=str(error)) from error
    listed = document.get("sites")
    if not isinstance(listed, Mapping) or len(listed) < 2:
        raise UsageError(
            "not a file of sites",
            where=str(file),
            expected="a mapping `sites` of at least two, with `up` and `down` each",
        )
    entries = {str(name): _entry(values, f"sites.{name}", file) for name, values in listed.items()}
    slow = [name for name, entry in entries.items() if not (entry.step_seconds or step_seconds)]
    if slow:
        raise UsageError(
            "how long is a step?", where=f"{file}: sites.{slow[0]}", next="add step_seconds there, or --step-seconds"
        )
    return sites_of(entries, step_seconds)


def _entry(values: Any, name: str, file: Path) -> SiteEntry:
    if not isinstance(values, Mapping):
        raise UsageError("not a mapping", where=f"{file}: {name}", found=repr(values))
    found = plugin_settings(SiteEntry, values, name)
    assert isinstance(found, SiteEntry)
    return found
