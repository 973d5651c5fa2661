"""The counts on ``explanation/promises.md``, from what the suites wrote into ``docs/data`` when they last ran."""

from __future__ import annotations

import json
from pathlib import Path

START, END = "<!-- counts:start -->\n", "<!-- counts:end -->"


def markdown(page: Path, data: Path) -> str:
    """The page with fresh tables between its markers.

    Args:
        data: directory of ``{"suite": …, "date": …, "commit": …, "areas": [{"area": …, "attempts": …, "failures": …}]}``.
    """
    head, rest = page.read_text(encoding="utf-8").split(START)
    lines: list[str] = []
    for file in sorted(data.glob("*.json")):
        suite = json.loads(file.read_text(encoding="utf-8"))
        attempts, failures = (sum(area[key] for area in suite["areas"]) for key in ("attempts", "failures"))
        where = f", commit {suite['commit']}" if "commit" in suite else ""
        lines += [
            f"### {suite['suite']}, {suite['date']}{where}",
            "",
            "| area | attempts | failures |",
            "|---|---|---|",
        ]
        lines += [f"| {area['area']} | {area['attempts']} | {area['failures']} |" for area in suite["areas"]]
        lines += [f"| **together** | **{attempts}** | **{failures}** |", ""]
    return head + START + "\n" + "\n".join(lines) + "\n" + END + rest.split(END, 1)[1]
