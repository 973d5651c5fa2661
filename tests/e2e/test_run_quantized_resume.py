"""Every kind of quantizer: a run that is cut in two ends in the bits of one that was not, and so do its codes and scales in
a directory, made by the run or from its checkpoint, and read again. (``fp8-qat`` and
``wint4-8`` are killed in their own tests; ``w8a8-qat`` is ``w4a8-qat`` with other bits.)
"""

import pytest

from erniecore.engine.arrays import to_numpy
from erniecore.engine.models.bundles import load_bundle
from erniecore.engine.models.quantized import apply
from erniecore.engine.models.weights import state_of
from erniecore.registry import load

pytestmark = pytest.mark.slow

STEPS = 4
TRAINED = {"fp8-block": {}, "w4a8-qat": {"quantizer__scale_warmup": 1}}
FROZEN = {"nf4": {}, "ccq-2.06": {"quantizer__int8": "self_attn.*"}}


def complete(ernie, runner, name, **changes):
    same = {"model__name": "ernie45-moe", "model__path": runner.home / "moe", "train__max_steps": STEPS}
    same |= {"train__learning_rate": 0.02, "checkpoint__every": 2, "run__out": runner.directory / name, **changes}
    outcome = ernie("run", *runner.words(**same)[1:])
    assert outcome.code in (0, 75), outcome.err
    return runner.directory / name


def cut_in_two(ernie, runner, **same):
    """The run in one piece, and in two."""
    whole = complete(ernie, runner, "whole", **same)
    complete(ernie, runner, "cut", **same, run__until=2)
    cut = complete(ernie, runner, "cut", **same)
    assert [event["step"] for event in runner.events("step", "cut")] == list(range(1, STEPS + 1))
    return whole, cut


def codes(directory):
    return {path.name: path.read_bytes() for path in directory.glob("weights-*")}


@pytest.mark.parametrize("kind", TRAINED)
def test_trained_codes(ernie, runner, kind):
    same = {"quantizer__name": kind, **TRAINED[kind]}
    whole, cut = cut_in_two(ernie, runner, **same)
    assert runner.tensors(STEPS, "cut") == runner.tensors(STEPS, "whole")
    assert codes(cut / "quantized") == codes(whole / "quantized")
    words = [f"{key.removeprefix('quantizer__')}={value}" for key, value in TRAINED[kind].items()]
    again = runner.directory / "again"
    outcome = ernie("quantize", cut / "ckpt" / f"step-{STEPS:08d}", "--to", kind, "--out", again, *words)
    assert outcome.code == 0, outcome.err
    assert codes(again) == codes(whole / "quantized")
    state = state_of(load_bundle(again, tokenizer=False).bundle.model)
    scales = [to_numpy(tensor) for name, tensor in state.items() if name.endswith("activation_scale")]
    assert all(scale > 0 for scale in scales)
    assert bool(scales) == (kind != "fp8-block")


@pytest.mark.parametrize("kind", FROZEN)
def test_adapters_beside_codes(ernie, runner, kind):
    """The quantized values are recomputed when the run resumes, and equal those of a quantized directory."""
    same = {"quantizer__name": kind, "adapter__name": "lora", "adapter__rank": 2, **FROZEN[kind]}
    cut_in_two(ernie, runner, **same)
    assert runner.tensors(STEPS, "cut") == runner.tensors(STEPS, "whole")
    plugin, settings = load("quantizer", kind), {k.removeprefix("quantizer__"): v for k, v in FROZEN[kind].items()}
    out, base = runner.directory / "codes", runner.home / "moe"
    words = [f"{key}={value}" for key, value in settings.items()]
    assert ernie("quantize", base, "--to", kind, "--out", out, *words).code == 0
    model = apply(plugin, plugin.Config(**settings), load_bundle(base, tokenizer=False).bundle.model, "train")
    stored = state_of(load_bundle(out, tokenizer=False).bundle.model)
    for name, tensor in state_of(model).items():
        assert to_numpy(stored[name]).tobytes() == to_numpy(tensor).tobytes(), name
