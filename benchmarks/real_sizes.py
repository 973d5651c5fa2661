"""Public sizes on this machine, as a user runs them: every row is real ``ernie`` commands in processes of their own, with
their wall time, the highest memory of all their processes, their rates, the rate at which the machine reads memory in the
same run, and what ``ernie plan`` had said.

    python -m benchmarks.real_sizes all --size 0.3b --keep DIR [--json FILE]
    python -m benchmarks.real_sizes decode prefill --size 21b --keep DIR --quantizers wint4-8

Rows: ``init`` writes a model with random weights in bfloat16; ``quantize`` packs it (``--kills 2``: it is killed so often on
the way, and must end with the same bytes); ``load`` is a command to its first token; ``decode`` and ``prefill`` read weights
and prompts; ``lora`` and ``dpo`` train an adapter on packed weights (``--kills 1``: killed, continued, same losses);
``train-0.3b`` is full SFT, LoRA and DPO; ``ranks`` are four processes, each with its peak; ``extract`` writes a smaller model
out of it (``--kills``, as for ``quantize``). A row makes what it needs in ``--keep`` and leaves it there, so that rows can be
repeated; without ``--keep`` all goes at the end. Sizes: ``0.3b``, ``21b`` (44 GB of shards), ``21b-4``: its first four layers,
``1b`` and ``1b-moe`` for ``ranks``, and ``tiny``, which the tests run. With ``llama_cpp`` in this environment
(``pip install llama-cpp-python``) ``load``, ``decode`` and ``prefill`` run it too, on a file of ``ernie export --to gguf``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.real_extract import extract
from benchmarks.real_models import (
    FORMS,
    LAYOUTS,
    SIZES,
    Size,
    largest_bytes,
    make_data,
    prompt_of,
    token_bytes,
    weight_bytes,
)
from benchmarks.watched import MIB, Watched, ernie, read_rate, watch

Row = dict[str, Any]
Rows = Iterator[Row]


@dataclass
class Bench:
    """What the rows share.

    Attributes:
        home: where models, data and runs are. quantizers: forms of packed weights. kills: SIGKILLs on the way of a row.
        settings: further ones of training runs. read: bytes per second that memory gives, the best of what was measured so far.
    """

    home: Path
    size: Size
    quantizers: tuple[str, ...]
    kills: int
    steps: int
    tokens: int
    prompts: tuple[int, ...]
    length: int
    settings: tuple[str, ...] = ()
    read: float = 0.0
    notes: list[str] = field(default_factory=list)

    def run(self, *words: object, kill_after: float | None = None) -> Watched:
        """One ``ernie`` command in ``home``."""
        return ernie(words, self.home, kill_after=kill_after)

    def good(self, *words: object) -> Watched:
        """One that must succeed; raises ``RuntimeError``."""
        done = self.run(*words)
        if done.code:
            said = (done.err.strip() or done.out.strip())[-600:]
            raise RuntimeError(f"ernie {' '.join(map(str, words))}: exit code {done.code}: {said}")
        return done

    def source(self) -> Path:
        """The model in bfloat16, made if it is not there."""
        if not (self.home / "source" / "config.json").exists():
            for row in init(self):
                self.notes.append(f"made {row['what']}")
        return self.home / "source"

    def packed(self, quantizer: str) -> Path:
        """The model in packed weights, made if it is not there; ``bf16`` is the source."""
        if quantizer == "bf16":
            return self.source()
        out = self.home / quantizer
        if not (out / "config.json").exists():
            self.good(*quantize_words(self.source(), quantizer), "--out", out)
        return out

    def measured_read(self) -> float:
        """Measured anew at each call, before and after what it bounds."""
        self.read = max(self.read, read_rate(self.size.read_gib))
        return self.read


def quantize_words(source: Path, form: str) -> list[object]:
    """The command that packs ``source``, without where to."""
    quantizer, *settings = FORMS.get(form, (form,))
    return ["quantize", source, *settings, "--to", quantizer, "--json"]


def base_row(what: str, done: Watched) -> Row:
    return {
        "what": what, "seconds": round(done.wall, 2), "cpu_s": round(done.cpu, 2),
        "peak_mib": round(done.peak / MIB), "anonymous_mib": round(done.anonymous / MIB),
    }  # fmt: skip


def init(bench: Bench) -> Rows:
    """A model with random weights: MB of files per second."""
    make_data(bench.home)
    out = bench.home / "source"
    shutil.rmtree(out, ignore_errors=True)
    words = ["--model", bench.size.model, "--size", bench.size.architecture, "--tokenizer", "tok", "--out", out]
    done = bench.good("model", "init", *words, "--dtype", "bfloat16", "--shard-size", bench.size.shard)
    written = weight_bytes(out)
    yield {**base_row("init", done), "mb": round(written / 1e6), "mb_per_s": round(written / 1e6 / done.wall, 1)}


def quantize(bench: Bench) -> Rows:
    """Packing of the bfloat16 model: MB of the source per second; with kills, the bytes of the files compared."""
    source = bench.source()
    for quantizer in bench.quantizers:
        if quantizer == "bf16":
            continue
        out = bench.home / quantizer
        shutil.rmtree(out, ignore_errors=True)
        words = quantize_words(source, quantizer)
        done = bench.good(*words, "--out", out)
        row = {**base_row(f"quantize {quantizer}", done), "mb": round(weight_bytes(out) / 1e6)}
        row["mb_per_s"] = round(weight_bytes(source) / 1e6 / done.wall, 1)
        if bench.kills:
            again = bench.home / f"{quantizer}-killed"
            shutil.rmtree(again, ignore_errors=True)
            for n in range(bench.kills):
                bench.run(*words, "--out", again, kill_after=done.wall * (n + 1) / (bench.kills + 1))
            bench.good(*words, "--out", again)
            row["killed"], row["bytes_equal"] = bench.kills, same_weights(out, again)
            shutil.rmtree(again)
        yield row


def same_weights(first: Path, second: Path) -> bool:
    """Whether two directories have the same files of weights, byte for byte."""
    names = sorted(path.name for path in first.glob("*.safetensors"))
    if not names or names != sorted(path.name for path in second.glob("*.safetensors")):
        return False
    return all(equal_files(first / name, second / name) for name in names)


def equal_files(first: Path, second: Path, piece: int = 1 << 24) -> bool:
    with first.open("rb") as a, second.open("rb") as b:
        while True:
            left, right = a.read(piece), b.read(piece)
            if left != right:
                return False
            if not left:
                return True


def generate(bench: Bench, model: Path, prompt: int, new: int) -> tuple[Watched, Row]:
    """One greedy completion of a prompt of so many tokens: the command, and what it printed."""
    text = bench.home / f"prompt-{prompt}.txt"
    text.write_text(prompt_of(bench.home / "tok", prompt), encoding="utf-8")
    words = ["--model", model, "--raw", "--prompt-file", text, "--max-new-tokens", new, "--ignore-eos", "--json"]
    done = bench.good("generate", *words)
    return done, done.last_json()


def load(bench: Bench) -> Rows:
    """A command to its first token, the files in the page cache."""
    for quantizer in bench.quantizers:
        model = bench.packed(quantizer)
        generate(bench, model, 8, 1)
        done, _ = generate(bench, model, 8, 1)
        files = weight_bytes(model)
        limit = 1.15 * files + 2**30
        row = {**base_row(f"load and first token, {quantizer}", done), "mb": round(files / 1e6)}
        yield {**row, "resident_over_limit": round(done.peak / limit, 2)}
    yield from llama(bench, 8, 1, "load")


def decode(bench: Bench) -> Rows:
    """One sequence: tokens per second, and the bytes of weights that a token needs over the time that memory gives them."""
    for quantizer in bench.quantizers:
        model = bench.packed(quantizer)
        before = bench.measured_read()
        done, found = generate(bench, model, 16, bench.tokens)
        read = max(before, bench.measured_read())
        size, rate = token_bytes(model), found["decode_tokens_per_s"]
        row = {**base_row(f"decode {bench.tokens}, {quantizer}", done), "tokens_per_s": rate}
        row |= {"mb_per_token": round(size / 1e6, 1), "gb_per_s": round(size * rate / 1e9, 2)}
        yield {**row, "read_gb_per_s": round(read / 1e9, 2), "of_read": round(size * rate / read, 3)}
    yield from llama(bench, 16, bench.tokens, "decode")


def prefill(bench: Bench) -> Rows:
    """Prompts: tokens per second to the first token."""
    for prompt in bench.prompts:
        for quantizer in bench.quantizers:
            done, found = generate(bench, bench.packed(quantizer), prompt, 1)
            row = base_row(f"prefill {prompt}, {quantizer}", done)
            yield {**row, "tokens_per_s": found["prefill_tokens_per_s"]}
        yield from llama(bench, prompt, 1, "prefill")


def llama(bench: Bench, prompt: int, new: int, what: str) -> Rows:
    """The same in llama.cpp, where it is installed."""
    if find_spec("llama_cpp") is None:
        return
    for form in ("q8_0", "q4_0"):
        file = bench.home / f"{form}.gguf"
        if not file.exists():
            bench.good("export", bench.source(), "--to", "gguf", "--dtype", form, "--out", file)
        found = file if file.is_file() else next(file.glob("*.gguf"))
        runner = Path(__file__).parent / "peers" / "run_llama.py"
        done = watch([sys.executable, str(runner), str(found), str(prompt), str(new)], bench.home)
        row, result = base_row(f"{what} {max(prompt, new)}, llama.cpp {form}", done), done.last_json()
        rate = {"load": "load_s", "decode": "decode_tokens_per_s", "prefill": "prefill_tokens_per_s"}[what]
        yield {**row, "tokens_per_s" if what != "load" else "load_s": result[rate]}


def train(bench: Bench, what: str, model: Path, *words: object) -> Row:
    """A training run: tokens per second of its later steps, memory beside the plan's, and with kills the losses compared."""
    data = "pairs.jsonl" if "dpo" in words else "rows.jsonl"
    common = ["--model", model, "--data", data, *words, f"data.max_seq_len={bench.length}", "train.accumulation=1"]
    common += bench.settings
    estimate: Any = bench.good("plan", *common, "--json").last_json()["estimate"]
    plan = estimate["process_memory"]
    rest = [
        f"train.max_steps={bench.steps}",
        "checkpoint.export=false",
        "log.report=false",
        "--json",
    ]
    done, events = run_events(bench, "run", [*common, *rest, "checkpoint.final=false"])
    steps = [event for event in events if event["event"] == "step"]
    tail = steps[1:] or steps
    rate = sum(step["tokens"] for step in tail) / sum(step["seconds"] for step in tail)
    row = {**base_row(what, done), "tokens_per_s": round(rate, 1), "planned_mib": round(plan / MIB)}
    row["plan_over_real"] = round(plan / done.peak, 3)
    if bench.kills:
        again, every = [*common, *rest], "checkpoint.every=2"
        shutil.rmtree(bench.home / "killed", ignore_errors=True)
        bench.run("run", *again, every, "--out", "killed", kill_after=0.7 * done.wall)
        bench.good("run", *again, every, "--out", "killed")
        lines = (bench.home / "killed" / "events.jsonl").read_text(encoding="utf-8").splitlines()
        last = {event["step"]: event["loss"] for event in map(json.loads, lines) if event["event"] == "step"}
        row["resumed_equal"] = last == {step["step"]: step["loss"] for step in steps}
    return row


def run_events(bench: Bench, out: str, words: list[object]) -> tuple[Watched, list[Row]]:
    """A run in ``out``, begun anew."""
    shutil.rmtree(bench.home / out, ignore_errors=True)
    done = bench.good("run", *words, "--out", out)
    return done, [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]


def adapted(bench: Bench, method: str) -> Rows:
    """An adapter on each form of the weights: on the packed directory, and where a run does not take one (ERN-C010), on the
    source, packed as it is read; the row says so. ``bf16`` is the source kept as its files have it, embedding and head too. A
    step has one row of ``--length`` tokens."""
    for quantizer in bench.quantizers:
        model, words = bench.packed(quantizer), ("--method", method, "--adapter", "lora")
        if quantizer == "bf16":
            yield train(bench, f"{method} lora, bf16", model, *words, "--quantizer", "bf16", "quantizer.head=bf16")
            continue
        tried = bench.run(
            "plan", "--model", model, "--data", "rows.jsonl", "--method", "sft", "--adapter", "lora", "--json"
        )
        if tried.code and "ERN-C010" in tried.out:
            what = f"{method} lora, {quantizer} as it is read"
            yield train(bench, what, bench.source(), *words, "--quantizer", quantizer)
        else:
            yield train(bench, f"{method} lora, {quantizer} directory", model, *words)


def lora(bench: Bench) -> Rows:
    """LoRA SFT on packed weights."""
    return adapted(bench, "sft")


def dpo(bench: Bench) -> Rows:
    """DPO of an adapter on packed weights; the reference is the same model without it."""
    return adapted(bench, "dpo")


def train_small(bench: Bench) -> Rows:
    """Full SFT, LoRA and DPO on float weights."""
    source = bench.source()
    yield train(bench, "sft, all weights", source, "--method", "sft")
    yield train(bench, "lora sft", source, "--method", "sft", "--adapter", "lora")
    yield train(bench, "dpo", source, "--method", "dpo", "--adapter", "lora")


def ranks(bench: Bench) -> Rows:
    """LoRA on four processes: the peak of each over what the largest stage keeps, two tensors and half a GiB."""
    source = bench.source()
    for name, words in LAYOUTS[bench.size.model].items():
        common = ["--model", source, "--data", "rows.jsonl", "--method", "sft", "--adapter", "lora"]
        common += [f"data.max_seq_len={bench.length}", *words.split(), *bench.settings]
        stages: Any = bench.good("plan", *common, "--json").last_json()["estimate"]["stages"]
        kept = max(sum(stage[part] for part in ("weights", "gradients", "optimizer")) for stage in stages)
        limit = kept + 2 * largest_bytes(source) + 2**29
        rest = [f"train.max_steps={min(bench.steps, 4)}", "checkpoint.export=false", "checkpoint.final=false"]
        done, _ = run_events(bench, f"ranks-{name}", [*common, *rest, "log.report=false", "--nproc", "4", "--json"])
        peaks = done.ranks[:4]
        row = {**base_row(f"4 processes, {name}", done), "peaks_mib": [round(peak / MIB) for peak in peaks]}
        row |= {"kept_mib": round(kept / MIB), "peak_over_limit": round(peaks[0] / limit, 2)}
        yield row | {"plan_over_real": round(max(stage["process_memory"] for stage in stages) / peaks[0], 3)}


ROWS: dict[str, Callable[[Bench], Rows]] = {
    "init": init, "quantize": quantize, "load": load, "decode": decode, "prefill": prefill,
    "lora": lora, "dpo": dpo, "train-0.3b": train_small, "ranks": ranks, "extract": extract,
}  # fmt: skip


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=[*ROWS, "all"])
    parser.add_argument("--size", choices=list(SIZES), default="0.3b")
    parser.add_argument("--keep", type=Path, help="where models and runs are and stay; default: a directory that goes")
    parser.add_argument(
        "--quantizers",
        help="forms of the weights: quantizers, bf16, wint4-8-shared (shared experts in 8, too), or wint8-head, wint4-head, "
        "wint4-8-head, wint4-8-shared-head (the head in 8, too)",
    )
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10, help="of a training run")
    parser.add_argument("--tokens", type=int, default=64, help="that are decoded")
    parser.add_argument("--prompts", default="", help="tokens of the prompts, e.g. 256,2048")
    parser.add_argument("--length", type=int, help="tokens of a training row")
    parser.add_argument("--set", nargs="*", default=[], help="settings of training runs, e.g. train.recompute=full")
    parser.add_argument("--json", type=Path, help="write the rows there, a line each, as they come")
    args = parser.parse_args(words)
    size = SIZES[args.size]
    home = args.keep or Path(tempfile.mkdtemp(prefix="real-sizes-"))
    home.mkdir(parents=True, exist_ok=True)
    forms = tuple(args.quantizers.split(",")) if args.quantizers else size.quantizers
    prompts = tuple(int(word) for word in args.prompts.split(",")) if args.prompts else size.prompts
    counts = args.kills, args.steps, args.tokens
    bench = Bench(home.resolve(), size, forms, *counts, prompts, args.length or size.length, tuple(args.set))
    try:
        return show(bench, list(ROWS) if "all" in args.rows else args.rows, args.json)
    finally:
        if args.keep is None:
            shutil.rmtree(home)


def show(bench: Bench, names: list[str], target: Path | None) -> int:
    """Lines of a table as they are measured; 1 if a row could not be."""
    print(describe(), flush=True)
    failed = 0
    for name in names:
        try:
            for row in ROWS[name](bench):
                rest = "; ".join(f"{key} {value}" for key, value in row.items() if key != "what")
                print(f"| {row['what']} | {rest} |", flush=True)
                if target is not None:
                    with target.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"size": bench.size.name, "row": name, **row}) + "\n")
        except RuntimeError as error:
            failed = 1
            print(f"| {name} | FAILED: {error} |", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
