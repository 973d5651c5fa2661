"""What quantization costs in quality: one small mixture of experts, trained on real text and a task with exact answers, then
quantized in every way that is installed. Prints held-out perplexity, exact answers and bytes of the weights; with ``--write``
puts the table into docs/explanation/quantization-quality.md.

``python -m benchmarks.quality [--out DIR] [--steps 900] [--more 150] [--write]``. Text is wiki_demo.txt in
ERNIE_REAL_DATA if that is set, else the doc strings of Python's library (``texts.py``). Everything runs in one process, one
thing after the other; directories that are there already are used again.

``base`` is trained once. From it go on, with the same batches: ``fp32``, the quantizers that train (``TRAINED``), and LoRA
beside the plain and beside the packed base. The quantizers that do not train start from ``fp32``, so that every line but
``base`` and the LoRA ones has seen the same tokens. A cache of codes counts in the loss: every key and value is what its codes
stand for.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.texts import paragraphs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "quantization-quality.md"
START, END = "<!-- table: benchmarks.quality -->", "<!-- end -->"
SIZE = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_num_experts": 24,
    "moe_k": 2,
    "moe_intermediate_size": 64,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 2,
    "num_nextn_predict_layers": 0,
    "initializer_range": 0.05,
}
#: line of the table -> quantizer and settings, for quantizers that need no training
AFTER: dict[str, tuple[str, ...]] = {
    "wint8": ("wint8",),
    "wint4-8": ("wint4-8",),
    "wint4 (a scale per output)": ("wint4",),
    "wint4 (64)": ("wint4", "group_size=64"),
    "nf4 (64)": ("nf4",),
    "gptq-4 (64)": ("gptq", "group_size=64"),
    "awq-4 (64)": ("awq", "group_size=64"),
    "ccq-2.5": ("ccq-2.5",),
    "ccq-2.06": ("ccq-2.06",),
    "fp8-ptq static": ("fp8-ptq",),
    "fp8-ptq dynamic": ("fp8-ptq", "activations=dynamic"),
    "fp8-ptq static, no Hadamard": ("fp8-ptq", "hadamard_block=0"),
    "w8a8 static": ("w8a8",),
    "w8a8 static, not smoothed": ("w8a8", "smoothing=0"),
    "w8a8 dynamic": ("w8a8", "activations=dynamic"),
    "w4a8 static": ("w4a8",),
    "cache int8 static": ("kv-cache",),
    "cache fp8 static": ("kv-cache", "cache=fp8"),
    "cache int4 static": ("kv-cache", "cache=int4"),
    "cache int4 dynamic": ("kv-cache", "cache=int4", "cache_scales=dynamic"),
    "w8a8 and cache int8": ("w8a8", "cache=int8"),
}
#: quantizers that train the weights
TRAINED = ("fp8-qat", "fp8-block", "w8a8-qat", "w4a8-qat")
CALIBRATED = ("gptq", "awq", "fp8-ptq", "w8a8", "w4a8", "kv-cache")


def ernie(*words: object) -> str:
    """One command in this process; its standard output. Raises ``RuntimeError`` with its messages when it fails."""
    from erniecore.cli.app import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    if code:
        raise RuntimeError(f"ernie {' '.join(map(str, words))}: exit {code}\n{err.getvalue()}")
    return out.getvalue()


def real_rows() -> list[dict[str, str]]:
    """Pieces of text: how they begin, and how they go on."""
    home = os.environ.get("ERNIE_REAL_DATA")
    texts = paragraphs()
    if home:
        articles = (Path(home) / "wiki_demo.txt").read_text(encoding="utf-8").split(". ")
        texts = [". ".join(articles[start : start + 3]) for start in range(0, len(articles), 3)]
    rows = [{"instruction": t[: len(t) // 4].strip(), "output": t[len(t) // 4 :].strip()} for t in texts]
    rows = [row for row in rows if row["instruction"] and 0 < len(row["output"]) < 400]
    Random(0).shuffle(rows)
    return rows


def sums() -> list[dict[str, str]]:
    """A task that has exact answers."""
    return [{"instruction": f"{a} plus {b}", "output": str(a + b)} for a in range(10) for b in range(10)]


def write_data(out: Path) -> None:
    """``train.jsonl`` (text, and each sum four times), ``held.jsonl`` (other text), ``sums.jsonl``, ``calib.jsonl``."""
    rows = real_rows()
    heldout, train = rows[:120], rows[120:4000]
    parts = {"train": train + 6 * sums(), "held": heldout, "sums": sums(), "calib": train[:60] + sums()[::4]}
    for name, content in parts.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")


def train(out: Path, name: str, model: Path, steps: int, *words: str) -> Path:
    """A run from ``model``; its directory."""
    run = out / name
    if not (run / "model").is_dir() and not (run / "adapter").is_dir():
        settings = [
            f"data.train={out / 'train.jsonl'}", "data.max_seq_len=256", "train.batch_size=4", f"train.max_steps={steps}",
            "train.learning_rate=2e-3", "train.warmup_steps=10", "data.max_drop=0.1", "log.report=false", f"run.out={run}",
        ]  # fmt: skip
        ernie("run", "--method", "sft", "--model", model, *settings, *words)
    return run


def scores(out: Path, model: Path, *words: object) -> dict[str, float]:
    """Loss and perplexity of held-out text, share of exact sums."""
    text = json.loads(ernie("eval", "--model", model, "--data", out / "held.jsonl", "--json", *words))
    asked = ["--data", out / "sums.jsonl", "--generate", "--max-new-tokens", 6, "--batch-size", 50, "--json"]
    exact = json.loads(ernie("eval", "--model", model, *asked, *words))
    return {"loss": text["loss"], "perplexity": text["perplexity"], "exact": exact["exact_match"]["score"]}


def divergence(out: Path, first: Path, second: Path) -> float:
    """Mean Kullback-Leibler divergence of the next token's distribution of ``second`` from that of ``first``, in nats per token
    of held-out text. Rounding moves a loss up or down by chance; this only up."""
    import paddle
    from erniecore_quantize.calibration import read_rows
    from paddle.nn import functional as F

    import erniecore
    from erniecore.engine.models.bundles import load_bundle

    batches = read_rows([str(out / "held.jsonl")], "sft", load_bundle(first).bundle).batches(256)
    models = [erniecore.load_model(path) for path in (first, second)]
    total = count = 0.0
    with paddle.no_grad():
        for ids in batches:
            p, q = (F.log_softmax(model(paddle.to_tensor(ids)).astype("float64")) for model in models)
            total += float((p.exp() * (p - q)).sum())
            count += ids.size
    return total / count


def weight_bytes(directory: Path) -> int:
    """Of the safetensors files."""
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def measure(out: Path, base: Path, more: int) -> list[dict[str, Any]]:
    """All lines of the table."""
    lines: list[dict[str, Any]] = []

    def line(name: str, model: Path, size: int, *words: object, **more: float) -> None:
        lines.append({"name": name, "bytes": size, **scores(out, model, *words), **more})
        print(json.dumps(lines[-1]), flush=True)

    fp32 = train(out, "fp32", base, more) / "model"
    line("fp32", fp32, weight_bytes(fp32))
    half = out / "bf16"
    if not half.is_dir():
        ernie("export", fp32, "--to", "hf", "--dtype", "bfloat16", "--out", half)
    line("bf16", half, weight_bytes(half), kl=divergence(out, fp32, half))
    for name in TRAINED:
        words = [f"quantizer.name={name}", *(["quantizer.scale_warmup=20"] if name != "fp8-block" else [])]
        run = train(out, name, base, more, *words)
        line(name, run / "quantized", weight_bytes(run / "quantized"))
    for name, (quantizer, *settings) in AFTER.items():
        target = out / "after" / name.replace(" ", "_")
        known = target.with_suffix(".json")
        if not target.is_dir():
            target.parent.mkdir(exist_ok=True)
            data = ["--calib", out / "calib.jsonl", "--max-seq-len", 256] if quantizer in CALIBRATED else []
            known.write_text(ernie("quantize", fp32, "--to", quantizer, "--out", target, "--json", *data, *settings))
        cache = json.loads(known.read_text())["cache"]
        stored = {"cache": cache["bytes_per_token"], "plain": cache["plain_bytes_per_token"]} if cache else {}
        line(name, target, weight_bytes(target), kl=divergence(out, fp32, target), **stored)
    for name, packed in (("LoRA on fp32", ""), ("LoRA on wint4-8", "quantizer.name=wint4-8")):
        words = ["adapter.name=lora", "adapter.rank=8", *([packed] if packed else [])]
        run = train(out, name.replace(" ", "_"), base, more, *words)
        under = base
        if packed:
            under = out / "base-wint4-8"
            if not under.is_dir():
                ernie("quantize", base, "--to", "wint4-8", "--out", under)
        line(name, under, weight_bytes(under), "--adapter", run)
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """Markdown; the loss beside that of fp32, of LoRA lines beside LoRA on fp32."""
    rows = [
        "| | bytes of weights | of the cache, per token | held-out loss | against fp32 | perplexity | 1000 KL | exact sums |",
        "|---|---|---|---|---|---|---|---|",
    ]
    reference = lines[0]
    for line in lines:
        reference = line if line["name"] == "LoRA on fp32" else reference
        change = line["loss"] / reference["loss"] - 1
        share = line["bytes"] / lines[0]["bytes"]
        cache = f"{line['cache']:,.0f} ({line['cache'] / line['plain']:.0%})" if "cache" in line else "–"
        kl = f"{1e3 * line['kl']:.3f}" if "kl" in line else "–"
        rows.append(
            f"| {line['name']} | {line['bytes'] / 1e6:.2f} MB ({share:.0%}) | {cache} | {line['loss']:.4f} | {change:+.2%} "
            f"| {line['perplexity']:.2f} | {kl} | {line['exact']:.0%} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Train, quantize, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/quality"))
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--more", type=int, default=150)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    text = table(measure(out, prepared(out, arguments.steps), arguments.more))
    print(text)
    if arguments.write:
        write_between(START, END, text)


def prepared(out: Path, steps: int) -> Path:
    """The data in ``out``, and the directory of the model that is trained once."""
    out.mkdir(parents=True, exist_ok=True)
    write_data(out)
    if not (out / "new").is_dir():
        ernie("tokenizer", "train", out / "train.jsonl", "--vocab-size", 1024, "--out", out / "tok")
        size = ",".join(f"{key}={value}" for key, value in SIZE.items())
        words = ["--model", "ernie45-moe", "--tokenizer", out / "tok", "--size", size, "--out", out / "new"]
        ernie("model", "init", *words)
    return train(out, "base", out / "new", steps) / "model"


def write_between(start: str, end: str, text: str) -> None:
    """``text`` into the page, between two lines of it."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(start)
    PAGE.write_text(f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
