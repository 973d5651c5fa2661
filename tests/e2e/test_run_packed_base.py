"""Runs on a directory of quantized weights: they compute what a run computes that packs the original itself, continue bit for
bit, find a changed base, and refuse what packed weights cannot do.
"""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from erniecore.errors import Exit

LORA = {"model__name": "ernie45-moe", "adapter__name": "lora", "adapter__rank": 2, "train__max_steps": 4}
LORA |= {"train__learning_rate": 0.02, "checkpoint__every": 2}
PAIRS = {"data__train": "pairs.jsonl", "data__packing": "none", "train__batch_size": 1}
QUANTIZERS = ("wint8", "wint4-8", "nf4")
KINDS = {
    "sft": {},
    "dpo": {**PAIRS, "method__name": "dpo"},
    "kto": {**PAIRS, "method__name": "kto", "data__train": "singles.jsonl"},
    "reward": {**PAIRS, "method__name": "reward"},
    "distill": {"method__name": "distill"},
    "grpo": {
        "method__name": "grpo",
        "method__group_size": 4,
        "method__max_new_tokens": 4,
        "rewards__regex": "{pattern: '[0-4]', whole: false}",
    },
}


@pytest.fixture(scope="module")
def packed(home, run_ernie, tmp_path_factory):
    """The ``moe`` model by quantizer, and rows of pairs and of single answers."""
    directory = tmp_path_factory.mktemp("packed")
    rows = [{"prompt": f"{i} plus {i}", "chosen": str(2 * i), "rejected": str(3 * i)} for i in range(1, 10)]
    (directory / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    singles = [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": i % 2 == 0} for i, row in enumerate(rows)
    ]
    (directory / "singles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in singles))
    for name in QUANTIZERS:
        done = run_ernie("quantize", home / "moe", "--to", name, "--out", directory / name)
        assert done.code == 0, done.err
    return directory


def settings(packed, base, **changes):
    found = {**LORA, "model__path": base, **changes}
    if "data__train" in found:
        found["data__train"] = packed / found["data__train"]
    if found.get("method__name") == "distill":
        found["method__teacher"] = packed / "wint8"
    return found


def words(runner, name="out", **changes):
    found = runner.words(name, **changes)
    return ["run", *(word for word in found if not (word == "method.name=sft" and "method__name" in changes))]


def complete(ernie, runner, name, **changes):
    outcome = ernie(*words(runner, name, **changes))
    assert outcome.code in (0, Exit.PREEMPTED), outcome.err


@contextmanager
def other_scales(base):
    """One tensor of ``base`` is another within the block, as if someone had quantized again; the name of its file."""
    (weights,) = base.glob("weights-*.safetensors")
    manifest = base / "erniecore_manifest.json"
    before = [(path, path.read_bytes()) for path in (weights, manifest)]
    tensors = load_file(weights)
    name = next(name for name in tensors if name.endswith("weight_scale"))
    save_file({**tensors, name: tensors[name] * np.float32(1.5)}, weights)
    manifest.unlink()
    yield weights.name
    for path, content in before:
        path.write_bytes(content)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_packed_base_is_the_base_that_a_run_packs(ernie, runner, packed, quantizer):
    complete(ernie, runner, "own", **settings(packed, runner.home / "moe", quantizer__name=quantizer))
    complete(ernie, runner, "packed", **settings(packed, packed / quantizer))
    assert runner.curve("packed") == runner.curve("own")
    assert runner.tensors(4, "packed") == runner.tensors(4, "own")
    plans = []
    for name, own in ((packed / quantizer, {}), (runner.home / "moe", {"quantizer__name": quantizer})):
        outcome = ernie(*words(runner, "none", **settings(packed, name, **own)), "--dry-run", "--json")
        plans.append({**json.loads(outcome.out), "name": ""})
    assert plans[0] == plans[1]
    assert plans[0]["parameters"]["packed_bytes"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_continues_bit_for_bit_and_finds_a_changed_base(ernie, refuses, runner, packed, kind):
    base = shutil.copytree(packed / "wint8", runner.directory / "base")
    same = settings(packed, base, **KINDS[kind])
    teacher = shutil.copytree(base, runner.directory / "teacher") if kind == "distill" else None
    same |= {"method__teacher": teacher} if teacher else {}
    complete(ernie, runner, "whole", **same)
    complete(ernie, runner, "cut", **same, run__until=2)
    for changed, part in [(base, "base"), *([(teacher, "reference")] if teacher else [])]:
        with other_scales(changed) as weights:
            found = refuses(
                words(runner, "cut", **same), Exit.USAGE, "ERN-C021", part, weights, remedy=f"accept_changes=[{part}]"
            )
            assert " -> " in found.err
    complete(ernie, runner, "cut", **same)
    assert runner.tensors(4, "cut") == runner.tensors(4, "whole")
    assert all("quant" not in name for _, name in runner.tensors(4, "cut"))


@pytest.mark.slow
def test_two_ranks_share_a_packed_base(runner, packed):
    base = shutil.copytree(packed / "wint8", runner.directory / "base")
    same = settings(packed, base, parallel__name="hybrid", parallel__tensor=2)
    runner.complete("whole", **same)
    code, _, errors = ended(runner.start("cut", warm=True, **same, run__until=2))
    assert code == Exit.PREEMPTED, errors
    with other_scales(base) as weights:
        code, _, errors = ended(runner.start("cut", warm=True, **same))
        assert code == Exit.USAGE, errors
        assert "ERN-C021" in errors
        assert weights in errors
    runner.complete("cut", **same)
    assert runner.tensors(4, "cut") == runner.tensors(4, "whole")


def ended(process):
    out, errors = process.communicate()
    return process.returncode, out, errors


def test_what_packed_weights_cannot_do_is_refused(refuses, runner, packed):
    base = packed / "wint4-8"
    alone = [word for word in words(runner, **settings(packed, base)) if not word.startswith("adapter")]
    refuses(alone, Exit.USAGE, "wint4-8 keeps the weights fixed", remedy="--adapter lora")
    other = words(runner, **settings(packed, base, quantizer__name="nf4"))
    refuses(other, Exit.USAGE, "quantizer.name", "is quantized by wint4-8", remedy="leave --quantizer out")
    grouped = words(runner, **settings(packed, base, quantizer__group_size=8))
    refuses(grouped, Exit.USAGE, "quantizer.group_size", "are packed with 0, not 8", remedy="leave it out")
    config = json.loads((base / "config.json").read_text())
    for quantizer, reason, remedy in (
        ("gptq", "has no backward pass", "--quantizer wint4"),
        ("fp8-qat", "updates unrounded weights", "--quantizer fp8-qat"),
    ):
        config["quantization_config"] = {"quant_method": "erniecore", "quantizer": quantizer, "settings": {}}
        directory = shutil.copytree(base, runner.directory / quantizer)
        (directory / "config.json").write_text(json.dumps(config))
        refuses(words(runner, **settings(packed, directory)), Exit.USAGE, reason, remedy=remedy)


def test_use_and_merge(ernie, refuses, runner, packed):
    complete(ernie, runner, "out", **settings(packed, packed / "wint8"))
    out, merged = runner.directory / "out", runner.directory / "merged"
    asked = ["--prompt", "3 plus 4", "--max-new-tokens", 3, "--json"]
    beside = ernie("generate", "--model", out, *asked)
    assert beside.code == 0, beside.err
    refuses(["merge", out, "--out", merged], Exit.USAGE, "quantized weights", remedy="--base")
    done = ernie("merge", out, "--base", runner.home / "moe", "--out", merged)
    assert done.code == 0, done.err
    assert "quantized by wint8" in done.err
    assert json.loads(ernie("generate", "--model", merged, *asked).out)["ids"] == json.loads(beside.out)["ids"]
