"""Results of evaluations: ``evaluations/NAME/`` below the directory of the runs, each with what the command wrote.

The files are those of ``ernie eval --out --samples`` and ``ernie lm-eval --out --samples``, so they outlive the page and the
queue, and two of them can be compared row by row later on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from erniecore.api import UsageError
from erniecore_webui.measures import Measure, measures, span
from erniecore_webui.site import NAME, Site
from erniecore_webui.state_files import stored_object

#: below the directory of the runs; in one of its directories
GROUP, RESULT, SAMPLES = "evaluations", "evaluation.json", "samples.jsonl"
_NAME_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Result:
    """A result that was kept.

    Attributes:
        models: one, or the two that were compared: places of models, or names of other results.
        facts: (what, value) of what the scores depend on.
        changed: when it was written, in seconds since 1970.
    """

    name: str
    models: tuple[str, ...]
    data: str
    rows: int | None
    measures: list[Measure]
    facts: list[tuple[str, str]]
    has_samples: bool
    changed: float

    @property
    def range(self) -> tuple[float, float]:
        """Of the plot of its intervals."""
        return span(self.measures)


def directory(site: Site) -> Path:
    """Where the results are."""
    return site.root / GROUP


def new_place(site: Site, *parts: str) -> Path:
    """A new directory for a result, named after what is measured. It is made, so that nothing else takes the name."""
    stems = (Path(part).stem if part.endswith((".jsonl", ".json")) else part for part in parts)
    stem = (
        "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", word).strip("-.") for word in stems).strip("-.")[:_NAME_LENGTH]
        or "result"
    )
    directory(site).mkdir(exist_ok=True)
    number = 1
    while True:
        path = directory(site) / (stem if number == 1 else f"{stem}-{number}")
        with suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1


def names(site: Site) -> list[tuple[str, float]]:
    """(name, time) of every result, the newest first."""
    found = []
    with suppress(OSError), os.scandir(directory(site)) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                with suppress(OSError):
                    found.append((entry.name, os.stat(f"{entry.path}/{RESULT}").st_mtime))
    return sorted(found, key=lambda item: (-item[1], item[0]))


def path_of(site: Site, name: str) -> Path:
    """The directory of a result. Raises ``UsageError`` where there is none."""
    path = directory(site) / name
    if not NAME.fullmatch(name) or path.is_symlink() or not (path / RESULT).is_file():
        raise UsageError("there is no such result", where=name, next="ernie eval --help")
    return path


def read(site: Site, name: str) -> Result:
    """A result by its name. Raises ``UsageError`` where there is none."""
    path = path_of(site, name)
    content = stored_object(path / RESULT)
    settings = content.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    rows = content.get("rows")
    return Result(
        name=name, models=_models(site, content), data=_data(content, settings), rows=rows if isinstance(rows, int) else None,
        measures=measures(content), facts=_facts(content, settings), has_samples=(path / SAMPLES).is_file(),
        changed=(path / RESULT).stat().st_mtime,
    )  # fmt: skip


def read_if_there(site: Site, name: str) -> Result | None:
    """The same; None where it was deleted meanwhile."""
    with suppress(UsageError, OSError):
        return read(site, name)
    return None


def of_models(site: Site, wanted: Callable[[str], bool]) -> list[Result]:
    """Results of the models whose place is wanted, the newest first."""
    found = (read_if_there(site, name) for name, _ in names(site))
    return [result for result in found if result is not None and any(wanted(place) for place in result.models)]


def _models(site: Site, content: dict[str, Any]) -> tuple[str, ...]:
    named = [str(content[key]) for key in ("model", "a", "b") if content.get(key)]
    own = site.models.place(directory(site)) + "/"
    return tuple(n.removeprefix(own).removesuffix(f"/{SAMPLES}") if n.startswith(own) else n for n in named)


def _data(content: dict[str, Any], settings: dict[str, Any]) -> str:
    tasks, files = content.get("results"), settings.get("data")
    return ", ".join(map(str, tasks if isinstance(tasks, dict) else files if isinstance(files, list) else ()))


def _facts(content: dict[str, Any], settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Hashes, versions and settings as lines, those that say something."""
    hashes = content.get("hashes")
    sides = hashes if isinstance(hashes, dict) else {}
    found: dict[str, Any] = {
        key: content[key] for key in ("model_sha256", "rows_sha256", "template_sha256") if key in content
    }
    found |= {f"{side} {key}": value for side, of in sides.items() if isinstance(of, dict) for key, value in of.items()}
    found |= {f"version {key}": value for key, value in (content.get("versions") or {}).items()}
    found |= {
        key: content[key] for key in ("num_fewshot", "limit", "max_length", "seed") if content.get(key) is not None
    }
    found |= {key: value for key, value in settings.items() if value not in ("", None, [], 0, False) and key != "data"}
    return [(key, str(value)) for key, value in found.items()]
