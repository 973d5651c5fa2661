"""llama.cpp on a GGUF file: ``run_llama.py FILE PROMPT NEW`` prints one JSON line with seconds to load and tokens per second, the
best of two rounds, of a prompt and of decoding with two threads.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
from llama_cpp import Llama


def main() -> None:
    path, prompt, new = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    threads, started = len(os.sched_getaffinity(0)), time.perf_counter()
    model = Llama(
        path,
        n_ctx=prompt + new + 8,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=512,
        verbose=False,
        use_mmap=True,
    )
    model.eval([5])
    load = time.perf_counter() - started
    ids = np.random.default_rng(0).integers(3, model.n_vocab(), prompt).tolist()
    prefill, decode = 0.0, 0.0
    for _ in range(2):
        model.reset()
        started = time.perf_counter()
        model.eval(ids)
        prefill = max(prefill, prompt / (time.perf_counter() - started))
        started = time.perf_counter()
        for token in ids[:new] if new <= prompt else [ids[i % prompt] for i in range(new)]:
            model.eval([token])
        decode = max(decode, new / (time.perf_counter() - started))
    found = {
        "load_s": round(load, 2),
        "prefill_tokens_per_s": round(prefill, 1),
        "decode_tokens_per_s": round(decode, 2),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
