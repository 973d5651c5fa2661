"""How the step time of a mixture of experts grows with the number of experts when each token still visits as many.

    python -m benchmarks.experts [--rows 4,16 --rounds 7 --experts 8,128 --threads 2]

All numbers of experts are models of one process and take their steps in turns, A B C A B C …, so that what else the machine
does falls on all of them alike. ``--rows``: rows of 512 tokens in a step; reading and updating the experts' weights costs the
same whatever the tokens, so that the growth is larger the fewer there are. ``python -m benchmarks.run experts`` runs each
number as a process of its own, whose peak of memory it shows too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.compare import HERE, installed_peers, run_case
from benchmarks.machine import wait_until_quiet

COUNTS = (8, 16, 32, 64, 128)


class Step(NamedTuple):
    """One step: wall and CPU seconds; ``update``: CPU seconds of the gradient norm and the optimizer in it."""

    wall: float
    cpu: float
    update: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=numbers, default=COUNTS, help="numbers of experts, comma-separated")
    parser.add_argument("--rows", type=numbers, default=(4, 16), help="rows of 512 tokens in a step, comma-separated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", choices=("installed", "reference"), default="installed")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE / "peers"))
    import run_ernie

    run_ernie.open_device(args.threads)
    if args.kernels == "installed":
        run_ernie.use_kernels()
    trained = {count: Trained(run_ernie, count, max(args.rows)) for count in args.experts}
    for rows in args.rows:
        print(table(rows, in_turns(trained, rows, args.rounds), {n: t.size for n, t in trained.items()}), flush=True)


def numbers(text: str) -> tuple[int, ...]:
    """``"8,16"`` -> (8, 16)."""
    return tuple(int(word) for word in text.split(","))


class Trained:
    """moe-S with so many experts, its optimizer, and rows to learn."""

    def __init__(self, runner: Any, count: int, rows: int) -> None:
        from erniecore_sft.objective import SftObjective

        from erniecore.config.adamw import AdamWConfig
        from erniecore.config.core import TrainSection
        from erniecore.engine.optimizers.adamw import AdamW
        from erniecore.engine.optimizers.parameters import trained_parameters

        spec = json.loads((HERE / "workloads.json").read_text(encoding="utf-8"))["workloads"]["moe-S"]
        spec["model"]["experts"] = count
        self.runner, self.spec = runner, {**spec, "batch": rows}
        self.model = runner.build_model(spec["model"], seed=1)
        self.model.train()
        self.size = sum(int(p.size) for p in self.model.parameters())
        self.objective = SftObjective(self.model)
        self.optimizer = AdamW(trained_parameters(self.model.named_parameters(), TrainSection()), AdamWConfig())

    def step(self, rows: int, seed: int) -> Step:
        """Forward, backward and update."""
        from erniecore.engine.optimizers.parameters import gradient_square_sum
        from erniecore.engine.step import forward_backward

        (batch,) = self.runner.make_batches({**self.spec, "batch": rows}, 1, seed)
        wall, cpu = time.perf_counter(), time.process_time()
        forward_backward(self.objective, [batch])
        middle = time.process_time()
        float(gradient_square_sum(self.optimizer))
        self.optimizer.step(1e-4, 0.5)
        update = time.process_time() - middle
        self.model.after_step()
        self.optimizer.clear_gradients()
        return Step(time.perf_counter() - wall, time.process_time() - cpu, update)


def in_turns(trained: dict[int, Trained], rows: int, rounds: int) -> dict[int, list[Step]]:
    """Steps of each number of experts; a first round of all is not counted."""
    found: dict[int, list[Step]] = {count: [] for count in trained}
    for turn in range(rounds + 1):
        for count, model in trained.items():
            step = model.step(rows, seed=turn)
            if turn:
                found[count].append(step)
    return found


def table(rows: int, found: dict[int, list[Step]], sizes: dict[int, int]) -> str:
    """Medians; growth is against the first number of experts: the median of the quotients of each turn."""
    tokens, first = 512 * rows, next(iter(found.values()))
    lines = [
        f"## {tokens:,} tokens a step",
        "",
        "| experts | parameters, millions | step s | growth | CPU s | growth | CPU s of the update | growth without it |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for count, steps in found.items():
        wall, cpu, update = (statistics.median(column) for column in zip(*steps, strict=True))
        grown = [
            growth(steps, first, lambda s: s.wall),
            growth(steps, first, lambda s: s.cpu),
            growth(steps, first, lambda s: s.cpu - s.update),
        ]
        by_wall, by_cpu, rest = (f"{100 * g:+.0f} %" for g in grown)
        lines.append(
            f"| {count} | {sizes[count] / 1e6:.1f} | {wall:.3f} | {by_wall} | {cpu:.3f} | {by_cpu} | {update:.3f} | {rest} |"
        )
    return "\n".join([*lines, ""])


def growth(steps: Sequence[Step], first: Sequence[Step], of: Callable[[Step], float]) -> float:
    """Median over turns of what one takes more than the other, as a share."""
    return statistics.median(of(a) / of(b) for a, b in zip(steps, first, strict=True)) - 1


def measure(args: argparse.Namespace) -> str:
    """moe-S with 8 … 128 experts of one size, 4 per token; a process each."""
    case = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))["sft-moe-S"]
    rows, first = [], 0.0
    with (args.out / "experts.jsonl").open("a", encoding="utf-8") as log:
        for count in COUNTS:
            wait_until_quiet()
            record = {"experts": count, **run_case("ernie", installed_peers()["ernie"], case, "--experts", str(count))}
            log.write(json.dumps(record) + "\n")
            result = record["result"]
            first = first or result["step_s"]
            rows.append(
                f"| {count} | {result['num_parameters'] / 1e6:.1f} | {result['step_s']:.3f} | "
                f"{result['step_s'] / first:.2f} | {result['cpu_s_per_step']:.2f} | {result['peak_rss_mb']:,.0f} |"
            )
    head = [
        "## Number of experts",
        "",
        "moe-S, 4 experts per token whatever their number; the step includes the optimizer over all parameters.",
        "",
        "| experts | parameters, millions | step s | × the first | CPU s/step | peak RSS MB |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + rows)


if __name__ == "__main__":
    main()
