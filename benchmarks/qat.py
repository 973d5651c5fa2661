"""Is training with rounded numbers better than rounding afterwards, at equal format? The small trained model of ``quality.py``
is trained on with several seeds, each time plainly and in every format, with the same batches; the plain one is then rounded to
the same format (the same codes, scales and Hadamard transform, input scales from calibration data). What is compared is the loss
of held-out text of the two directories of codes, seed by seed: mean difference and its 95 % interval (Student's t).

``python -m benchmarks.qat [--out DIR] [--steps 900] [--more 150] [--seeds 5] [--bits 4,3] [--write]``; ``--write`` puts the table
into docs/explanation/quantization-quality.md. Text as in ``quality.py``. Directories that are there already are used again, and
``DIR/qat-BITS-SEED.json`` keeps what was measured. Weights of three bits are those of four with codes from -3 to 3: no quantizer
has them, they are here to see where training begins to pay.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import quality
from benchmarks.intervals import interval

START, END = "<!-- table: benchmarks.qat -->", "<!-- end of benchmarks.qat -->"


class Form(NamedTuple):
    """A format: the quantizer that trains in it, the one that rounds afterwards, with the settings that make it the same."""

    trains: str
    rounds: str
    settings: tuple[str, ...] = ()


_SAME = ("smoothing=0", "hadamard_block=32")
#: bits of integer weights -> line of the table -> format; GPTQ does not round inputs, which is the finer format
FORMS = {
    4: {
        "FP8, a scale per tensor": Form("fp8-qat", "fp8-ptq"),
        "W4A8": Form("w4a8-qat", "w4a8", _SAME),
        "W4A8 against GPTQ": Form("w4a8-qat", "gptq", ("bits=4", "group_size=0")),
    },
    3: {
        "W3A8": Form("w4a8-qat", "w4a8", _SAME),
        "W3A8 against GPTQ": Form("w4a8-qat", "gptq", ("bits=4", "group_size=0")),
    },
}


def use_bits(bits: int) -> None:
    """Integer codes of four bits go up to 2^(bits - 1) - 1, for all quantizers in this process."""
    from erniecore_ptq import rounding
    from erniecore_weight_only import codec

    codec._TOP["int4"] = rounding._TOP["int4"] = 2 ** (bits - 1) - 1


def losses_of(out: Path, base: Path, more: int, seed: int, bits: int) -> dict[str, float]:
    """``plain``, and for every form ``form/trained`` and ``form/rounded``."""
    use_bits(bits)
    known = out / f"qat-{bits}-{seed}.json"
    if known.is_file():
        found: dict[str, float] = json.loads(known.read_text())
        return found

    def loss(model: Path) -> float:
        told = json.loads(quality.ernie("eval", "--model", model, "--data", out / "held.jsonl", "--json"))
        return float(told["loss"])

    plain = quality.train(out, f"plain-{seed}", base, more, f"run.seed={seed}") / "model"
    losses, trained = {"plain": loss(plain)}, {}
    for name, form in FORMS[bits].items():
        if form.trains not in trained:
            words = (f"run.seed={seed}", f"quantizer.name={form.trains}", "quantizer.scale_warmup=20")
            run = quality.train(out, f"{form.trains}-{bits}-{seed}", base, more, *words)
            trained[form.trains] = loss(run / "quantized")
        target = out / "rounded" / f"{form.rounds}-{form.trains}-{bits}-{seed}"
        if not target.is_dir():
            target.parent.mkdir(exist_ok=True)
            data = ("--calib", out / "calib.jsonl", "--max-seq-len", 256)
            quality.ernie("quantize", plain, "--to", form.rounds, "--out", target, *data, *form.settings)
        losses |= {f"{name}/trained": trained[form.trains], f"{name}/rounded": loss(target)}
    known.write_text(json.dumps(losses))
    return losses


def table(found: dict[int, list[dict[str, float]]]) -> str:
    """Markdown: a line per form; losses beside that of the same seeds in fp32."""
    rows = [
        "| format | rounded afterwards | trained | trained − rounded | 95 % interval | trained is better in |",
        "|---|---|---|---|---|---|",
    ]
    for bits, name in [(one, name) for one in found for name in FORMS[one]]:
        plain = statistics.mean(one["plain"] for one in found[bits])
        pairs = [(one[f"{name}/rounded"], one[f"{name}/trained"]) for one in found[bits]]
        rounded, trained = (statistics.mean(side) for side in zip(*pairs, strict=True))
        mean, half = interval([b - a for a, b in pairs])
        wins = sum(b < a for a, b in pairs)
        rows.append(
            f"| {name} | {rounded:.4f} ({rounded / plain - 1:+.2%}) | {trained:.4f} ({trained / plain - 1:+.2%}) "
            f"| {mean:+.4f} | {mean - half:+.4f} … {mean + half:+.4f} | {wins} of {len(pairs)} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Train, round, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/quality"))
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--more", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--bits", default="4,3")
    parser.add_argument("--write", action="store_true")
    arguments: Any = parser.parse_args()
    out = arguments.out.absolute()
    base = quality.prepared(out, arguments.steps)
    found: dict[int, list[dict[str, float]]] = {int(bits): [] for bits in arguments.bits.split(",")}
    for bits, several in found.items():
        for seed in range(1, arguments.seeds + 1):
            several.append(losses_of(out, base, arguments.more, seed, bits))
            print(json.dumps({"bits": bits, "seed": seed, **several[-1]}), flush=True)
    text = table(found)
    print(text)
    if arguments.write:
        quality.write_between(START, END, text)


if __name__ == "__main__":
    main()
