"""``python -m benchmarks.run``: everything that can be measured here, as JSON lines and one Markdown page.

Peers that are installed are compared in turns; the rest is measured on ourselves. See ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks import check, compare, experts, kernels, layouts, packed, profile, startup
from benchmarks.machine import describe

PARTS = {
    "check": check.measure,
    "peers": compare.measure,
    "experts": experts.measure,
    "kernels": kernels.measure,
    "packed": packed.measure,
    "layouts": layouts.measure,
    "startup": startup.measure,
    "profile": profile.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--cases", default="sft-dense-S,sft-dense-M,sft-moe-S", help="of benchmarks/cases.json")
    parser.add_argument("--peers", default="", help="names, comma-separated (default: all that are installed)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each peer")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    unknown = sorted(set(args.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    sections = [f"# Benchmarks, {time.strftime('%Y-%m-%d')}", describe()]
    for name in args.parts or list(PARTS):
        sections.append(PARTS[name](args))
        print(sections[-1], flush=True)
    page = args.out / "benchmarks.md"
    page.write_text("\n\n".join(sections) + "\n", encoding="utf-8")
    print(f"\nwritten: {page}")


if __name__ == "__main__":
    main()
