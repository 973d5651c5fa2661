"""How long it takes to lay 300B-A47B out over 2,016 ranks on paper, and whether everything holds: rank map, groups, who
holds which parameter, the order of passes of every stage. No paddle, one process.

    python -m benchmarks.layout_scale
    python -m benchmarks.layout_scale ranks=96 tensor=8 pipeline=12 chunks=2 micros=24 size=21b-a3b
"""

from __future__ import annotations

import sys
import time
from typing import Any

from erniecore.config import compose
from erniecore.engine.preparation.model import read_model

DEFAULTS = {"ranks": 2016, "tensor": 8, "pipeline": 12, "chunks": 4, "sharding": 21, "micros": 120}


def main(words: list[str]) -> int:
    """Exit code 1 when an invariant is broken."""
    from erniecore_hybrid_parallel.config import HybridConfig
    from erniecore_hybrid_parallel.scale import check, lines_of

    given = dict(word.split("=", 1) for word in words)
    size = given.pop("size", "300b-a47b")
    numbers: dict[str, Any] = {
        **DEFAULTS,
        **({"sharding": 1} if given else {}),
        **{k: int(v) for k, v in given.items()},
    }
    loaded = compose.load(None, ["model.name=ernie45-moe", f"model.size={size}", "method.name=sft"], {}, {})
    host = loaded.host
    architecture, adapter, _ = read_model(host, loaded.settings.model, loaded.plugins["method"])
    shapes = {entry.name: entry.shape for entry in adapter.maps("pt")}
    ranks, micros = numbers.pop("ranks"), numbers.pop("micros")
    started = time.perf_counter()
    found = check(
        HybridConfig(**numbers),
        ranks,
        host.hook.ernie_decoder_shape(architecture=architecture),
        host.hook.ernie_model_layout(architecture=architecture),
        shapes,
        micros,
    )
    seconds = time.perf_counter() - started
    for label, text in (*lines_of(found), ("seconds", f"{seconds:.2f}")):
        print(f"{label:<8} {text}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
