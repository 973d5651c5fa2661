"""The third-party versions with which the tests ran: what ``erniecore[default,cpu,data,lm-eval]`` needs, at any depth, in the
environment of this interpreter.

``python tests/helpers/tested_versions.py``: lists what differs from ``constraints.txt``; ``--write``: writes it
(``make constraints``, after a run of the tests).
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILE = Path(__file__).parents[2] / "constraints.txt"
EXTRAS = ("default", "cpu", "data", "lm-eval")
HEAD = """# Versions with which the tests ran last, for `pip install --constraint constraints.txt`, by `make constraints`.
# Which versions are allowed is in the pyproject.toml files.
"""


def installed(root: str = "erniecore", extras: tuple[str, ...] = EXTRAS) -> dict[str, str]:
    """Name -> version of what a distribution of ours depends on and is not ours."""
    found: dict[str, str] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue
        if not name.startswith("ernie"):
            found[name] = dist.version
        for requirement in map(Requirement, dist.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((canonicalize_name(requirement.name), tuple(sorted(requirement.extras))))
    return dict(sorted(found.items()))


def pinned(version: str) -> dict[str, str]:
    """Name -> version in the file, for a version of Python such as 3.11."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    pins = [Requirement(line) for line in lines]
    ours = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"python_version": version})]
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in ours}


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write constraints.txt")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = installed()
    if parser.parse_args().write:
        lines = [f'{name}=={version}; python_version == "{here}"\n' for name, version in found.items()]
        FILE.write_text(HEAD + "".join(lines), encoding="utf-8")
        return
    tested = pinned(here)
    for name in sorted(found.keys() | tested.keys()):
        if found.get(name) != tested.get(name):
            print(f"{name}: tested {tested.get(name, '-')}, here {found.get(name, '-')}")


if __name__ == "__main__":
    main()
