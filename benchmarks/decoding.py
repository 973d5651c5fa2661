"""Decoding with the product's pool of rows against fixed batches (a batch is decoded to its end before the next begins), and
what speculative decoding saves or costs; in turns in one process, random weights, sizes of ``workloads.json``.

    python -m benchmarks.decoding [--rounds 5] [--threads 2] [--parts plain,mixed,drafts]

plain: answers of 64 tokens, 1 and 8 rows. mixed: 24 answers of 4 to 96 tokens, 8 at a time. guesses: 1 and 8 rows, guesses
of which a given share is right (an oracle that knows the answer, and lies), and the layer of multi-token prediction with
random weights: what it costs. engine: the answers of mixed by the serving engine. calls: whole passes in one call of a kernel
against layer by layer. large (not by default; some minutes): a model of 710 MB, and the same with its layers in 8 and 4 bits,
against the rate at which memory is copied.

    python -m benchmarks.decoding --parts calls
    python -m benchmarks.decoding --parts large
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PROMPT, ANSWER = 64, 64
Run = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", default="plain,mixed,drafts")
    args = parser.parse_args()
    from benchmarks.packed import open_device

    open_device(args.threads)
    from erniecore.kernels import in_use

    print(f"{args.threads} threads, kernels: {', '.join(sorted(in_use())) or 'none'}")
    print("| what | tokens | CPU s | time of the first / this, wall (CPU) |\n|---|---|---|---|")
    parts = args.parts.split(",")
    for name in ("dense-S", "moe-S"):
        model = build(name) if set(parts) - {"large"} else None
        for part in parts:
            if part != "large":
                PARTS[part](f"{name}, ", model, args.rounds)
    if "large" in parts:
        large(args.rounds)


def build(name: str) -> Any:
    """A model of ``workloads.json`` in evaluation mode; the mixture of experts has an MTP layer."""
    sys.path.insert(0, str(HERE / "peers"))
    from run_ernie import architecture

    size = json.loads((HERE / "workloads.json").read_text(encoding="utf-8"))["workloads"][name]["model"]
    import paddle

    paddle.seed(0)
    if size["arch"] == "dense":
        from erniecore_ernie45.plugin import plugin as dense

        model = dense.ernie_build_model(architecture=architecture(size), dtype="float32")
    else:
        from erniecore_ernie45_moe.plugin import plugin as moe

        described = {**architecture(size), "num_nextn_predict_layers": 1}
        model = moe.ernie_build_model(config=moe.Config(mtp=True), architecture=described, dtype="float32")
    model.eval()
    return model


def prompts(model: Any, rows: int) -> list[list[int]]:
    """Random token ids, one prompt per row."""
    ids: list[list[int]] = np.random.default_rng(1).integers(4, model.arch.vocab_size, (rows, PROMPT)).tolist()
    return ids


def fixed(model: Any, rows: list[list[int]], limits: list[int], size: int) -> None:
    """One batch after the other, each to its end."""
    from erniecore_generation.generate import Decoder
    from erniecore_generation.sampling import Sampling

    for first in range(0, len(rows), size):
        part = np.array(rows[first : first + size])
        ends = np.array(limits[first : first + size])
        decoder = Decoder(model, part, sampling=Sampling(), max_new_tokens=int(ends.max()))
        while decoder.live.any():
            decoder.step()
            decoder.live &= decoder.steps < ends


def pooled(model: Any, rows: list[list[int]], limits: list[int], size: int, drafter: Any = None) -> Any:
    """The product's way; the pool."""
    from erniecore_generation.batching import Pool
    from erniecore_generation.sampling import Sampling

    pool = Pool(model, rows, sampling=Sampling(), max_new_tokens=limits, slots=size, drafter=drafter)
    for _ in pool.run():
        pass
    return pool


def plain(name: str, model: Any, rounds: int) -> None:
    """Answers of one length."""
    for size in (1, 8):
        rows, limits = prompts(model, size), [ANSWER] * size
        runs: dict[str, Run] = {
            f"{name}{size} rows: fixed batch": lambda rows=rows, limits=limits: fixed(model, rows, limits, len(rows)),
            "pool": lambda rows=rows, limits=limits: pooled(model, rows, limits, len(rows)),
        }
        show(runs, sum(limits), rounds)


def mixed(name: str, model: Any, rounds: int) -> None:
    """Answers of different lengths, short ones more often."""
    rows = prompts(model, 24)
    limits = np.random.default_rng(2).geometric(1 / 40, 24).clip(4, 96).tolist()
    runs: dict[str, Run] = {
        f"{name}24 answers, 8 at a time: fixed batches": lambda: fixed(model, rows, limits, 8),
        "pool": lambda: pooled(model, rows, limits, 8),
    }
    show(runs, sum(limits), rounds)


class Oracle:
    """Drafts ``most`` tokens of the true completions; each is right with the probability ``share``."""

    layers = 0

    def __init__(self, answers: list[list[int]], most: int, share: float) -> None:
        self.answers, self.most, self.share = {tuple(a[:PROMPT]): a for a in answers}, most, share
        self.numbers = np.random.default_rng(3)

    def draft(self, inputs: Any, draw: Any) -> list[list[int]]:
        """Draft tokens for each row."""
        found = []
        for text in inputs.texts:
            correct = self.answers[tuple(text[:PROMPT])][len(text) : len(text) + self.most]
            found.append([t if self.numbers.random() < self.share else t ^ 1 for t in correct])
        return found


def drafts(name: str, model: Any, rounds: int) -> None:
    """Speculative decoding with draft tokens of a known acceptance rate, and with the MTP layer."""
    from erniecore_generation.speculate import MtpDrafter

    for size in (1, 8):
        rows, limits = prompts(model, size), [ANSWER] * size
        answers = pooled(model, rows, limits, size).ids
        runs: dict[str, Run] = {f"{name}{size} rows: no draft": lambda r=rows, e=limits: pooled(model, r, e, len(r))}
        for most, share in ((1, 0.0), (1, 1.0), (4, 0.0), (4, 0.8)):
            runs[f"{most} draft tokens, {share:.0%} accepted"] = lambda r=rows, e=limits, a=answers, m=most, s=share: (
                pooled(model, r, e, len(r), Oracle(a, m, s))
            )
        if model.architecture.get("num_nextn_predict_layers"):
            runs["prediction layer, random weights"] = lambda r=rows, e=limits: pooled(
                model, r, e, len(r), MtpDrafter(model)
            )
        show(runs, sum(limits), rounds)


def calls(name: str, model: Any, rounds: int) -> None:
    """Layer by layer and in one call, 1 and 8 rows."""
    for size in (1, 8):
        rows, limits = prompts(model, size), [ANSWER] * size
        runs: dict[str, Run] = {}
        for what, step in ((f"{name}{size} rows: layer by layer", "reference"), ("in one call", "")):
            runs[what] = lambda rows=rows, limits=limits, step=step: with_step(
                step, lambda: fixed(model, rows, limits, len(rows))
            )
        show(runs, sum(limits), rounds)


def served(model: Any, rows: list[list[int]], limits: list[int], size: int, **options: Any) -> None:
    """The serving engine, all requests at once."""
    import threading
    from types import SimpleNamespace

    from erniecore_generation.engine.engine import Engine
    from erniecore_generation.engine.requests import Failed, Finished, GenerationRequest
    from erniecore_generation.sampling import Sampling

    serving = Engine(
        SimpleNamespace(model=model), SimpleNamespace(pad_id=0), rows=size, prefix_bytes=0, block=1, **options
    )
    serving.start()
    left, over = [len(rows)], threading.Event()

    def listener(event: Any) -> None:
        left[0] -= isinstance(event, Finished | Failed)
        if not left[0]:
            over.set()

    for row, limit in zip(rows, limits, strict=True):
        serving.submit(GenerationRequest(tuple(row), Sampling(), limit), listener)
    over.wait()
    serving.stop()
    assert not serving.stats().failed


def engine(name: str, model: Any, rounds: int) -> None:
    """The serving engine against the pool; completions independent of their neighbors or not, with the kernel and without."""
    rows, limits = prompts(model, 24), np.random.default_rng(2).geometric(1 / 40, 24).clip(4, 96).tolist()
    for step, forms in (("", (None,)), ("reference", (False, True))):
        what = "layer by layer" if step else "in one call"
        runs: dict[str, Run] = {
            f"{name}24 answers, 8 at a time, {what}: pool": lambda step=step: with_step(
                step, lambda: pooled(model, rows, limits, 8)
            )
        }
        for invariant in forms:
            label = {None: "engine", False: "engine", True: "engine, a pass per row"}[invariant]
            runs[label] = lambda step=step, i=invariant: with_step(
                step, lambda: served(model, rows, limits, 8, invariant=i)
            )
        show(runs, sum(limits), rounds)


def with_step(name: str, run: Run) -> Any:
    """``run`` with an implementation of ``decoder_step``; the chosen one if it is empty."""
    from erniecore_ops.parallel import num_workers

    from erniecore import kernels

    kernels.use(kernels.choose("cpu", {"decoder_step": name} if name else {}), num_workers)
    return run()


def large(rounds: int) -> None:
    """Tokens and bytes of weights per second of a model that no cache holds, float32 and packed; the forms take turns."""
    from erniecore_weight_only.schemes import Scheme

    from benchmarks.packed import Memory, in_turns

    memory = Memory()
    taken = in_turns({"copy": memory.copy, "read": memory.read}, 7)
    copied, read = 2 * memory.size / taken["copy"], memory.size / taken["read"]
    print(f"\ncopy {copied / 1e9:.1f} GB/s (bytes read and written), read {read / 1e9:.1f} GB/s")
    print("| form | MB per step | rows | tokens/s | float32 = 1 | GB/s of weights | over copy | over read |")
    print("|---|---|---|---|---|---|---|---|")
    forms = {"float32": None, "int8": Scheme("int8"), "int4/64": Scheme("int4", 64)}
    models = {form: large_model(scheme) for form, scheme in forms.items()}
    for size in (1, 8):
        seconds: dict[str, float] = dict.fromkeys(forms, float("inf"))
        for _ in range(rounds):
            for form, (model, _) in models.items():
                seconds[form] = min(seconds[form], step_seconds(model, size))
        for form, time_of_step in seconds.items():
            size_of = models[form][1]
            rate, ratio = size_of / time_of_step, seconds["float32"] / time_of_step
            line = (
                f"{size / time_of_step:.1f} | {ratio:.2f} | {rate / 1e9:.1f} | {rate / copied:.2f} | {rate / read:.2f}"
            )
            print(f"| {form} | {size_of / 1e6:.0f} | {size} | {line} |", flush=True)


def large_model(scheme: Any) -> tuple[Any, float]:
    """12 layers of 1,024, 32,000 words, the head tied; and the bytes that a step reads."""
    import paddle
    from erniecore_ernie45.plugin import plugin as dense
    from erniecore_ops import functions as ops
    from erniecore_weight_only.layers import PackedLinear

    sys.path.insert(0, str(HERE / "peers"))
    from run_ernie import architecture

    sizes = {"arch": "dense", "hidden": 1024, "layers": 12, "heads": 16, "kv_heads": 4, "head_dim": 64}
    sizes |= {"intermediate": 3072, "vocab": 32000, "max_pos": 4096, "rope_theta": 5e5, "rms_eps": 1e-5, "tie": True}
    paddle.seed(0)
    model = dense.ernie_build_model(architecture=architecture(sizes), dtype="float32")
    model.eval()
    for layer in model.sublayers() if scheme else ():
        for name, inner in list(layer.named_children()):
            if ops.is_plain_linear(inner):
                setattr(layer, name, PackedLinear(inner, scheme, name))
    tensors = [*model.parameters(), *model.buffers()]
    return model, float(sum(int(tensor.size) * int(tensor.element_size()) for tensor in tensors))


def step_seconds(model: Any, size: int, steps: int = 12) -> float:
    """Seconds of a step after a prompt, the least of some."""
    import paddle
    from erniecore_generation.generate import Decoder
    from erniecore_generation.sampling import Sampling

    with paddle.no_grad():
        decoder = Decoder(model, np.array(prompts(model, size)), sampling=Sampling(), max_new_tokens=steps + 1)
        decoder.step()
        best = float("inf")
        for _ in range(steps):
            started = time.perf_counter()
            decoder.step()
            best = min(best, time.perf_counter() - started)
    return best


PARTS = {"plain": plain, "mixed": mixed, "drafts": drafts, "calls": calls, "engine": engine}


def show(runs: dict[str, Run], tokens: int, rounds: int) -> None:
    """Lines of the table; the runs take turns."""
    import paddle

    times: dict[str, list[tuple[float, float]]] = {what: [] for what in runs}
    with paddle.no_grad():
        for turn in range(rounds + 1):
            for what, run in runs.items():
                wall, cpu = time.perf_counter(), time.process_time()
                run()
                if turn:
                    times[what].append((time.perf_counter() - wall, time.process_time() - cpu))
    medians = {what: tuple(statistics.median(t[i] for t in found) for i in (0, 1)) for what, found in times.items()}
    first = next(iter(medians.values()))
    for what, (wall, cpu) in medians.items():
        print(f"| {what} | {tokens} | {cpu:.2f} | {first[0] / wall:.2f} ({first[1] / cpu:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
