"""``python -m benchmarks.papers NAME [--seeds N] [--steps N] [--out DIR]`` runs one experiment and writes
docs/data/papers/NAME.json; ``python docs/generate.py --write`` then renews its page and the table of all.
Without NAME it lists them.

``--out`` keeps what was measured, so an experiment that was stopped goes on; ``--data DIR`` writes the JSON elsewhere.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import benchmarks.papers as package
from benchmarks.papers.common import DATA, ROOT, Experiment, measure_all, record, write


def experiments() -> Mapping[str, str]:
    """Name -> module of every experiment: the modules that say ``EXPERIMENT``, without importing them."""
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        source = Path(package.__path__[0]) / f"{module.name}.py"
        if "\nEXPERIMENT = " in source.read_text(encoding="utf-8"):
            found[module.name.replace("_", "-")] = f"{package.__name__}.{module.name}"
    return found


def load(name: str) -> Experiment:
    """Raises ``SystemExit`` with the known names."""
    known = experiments()
    if name not in known:
        raise SystemExit(f"no experiment is called {name!r}; there are: {', '.join(known)}")
    found: Experiment = importlib.import_module(known[name]).EXPERIMENT
    if found.name != name:
        raise SystemExit(f"{known[name]}: EXPERIMENT is called {found.name!r}, expected {name!r}")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, write, print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    told = parser.parse_args(arguments)
    if told.name is None:
        print("\n".join(experiments()))
        return
    experiment = load(told.name)
    steps = told.steps or experiment.steps
    out = (told.out or ROOT / "benchmarks" / "results" / "papers" / experiment.name).absolute()
    results = measure_all(experiment, told.seeds or experiment.seeds, steps, out)
    content = record(experiment, results, steps)
    print(f"{write(content, told.data)}: {content['verdict']}: {content['reason']}")


if __name__ == "__main__":
    main()
