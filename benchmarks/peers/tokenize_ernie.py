"""Tokenizes a file of conversations as a run does: read, check, render, encode, and put on disk. One JSON line."""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    from erniecore_text.tokenizer import SentencePieceTokenizer
    from erniecore_token_cache.cache import TokenCache

    from erniecore import registry
    from erniecore.config.core import Source
    from erniecore.data.sources import resolve
    from erniecore.host import assemble

    method: Any = registry.load("method", "sft")
    encoder = assemble({"method": method}).call(
        method,
        "ernie_build_encoder",
        config=method.Config(),
        tokenizer=SentencePieceTokenizer.from_directory(args.model),
        max_length=1 << 20,
    )
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        cached = TokenCache(Path(directory)).encode(
            resolve([Source(path=str(args.file))]), encoder, workers=args.workers if args.workers > 1 else 0
        )
        seconds = time.perf_counter() - started
        store = cached.store
        first = store[0]
        facts = {
            "seconds": round(seconds, 2),
            "rows": cached.statistics.total("rows"),
            "tokens": store.num_tokens,
            "cpu_s": round(cpu_seconds(), 2),
            "first_ids": [*first.input_ids[:16].tolist()],
        }
    print(json.dumps(facts))


def cpu_seconds() -> float:
    """Of this process and its finished workers."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages)


if __name__ == "__main__":
    main()
