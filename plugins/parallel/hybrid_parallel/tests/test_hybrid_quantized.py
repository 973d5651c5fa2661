"""Quantized weights that ranks share: losses, norms and trained weights of one process, and the codes and scales to the bit."""

import importlib.util
from pathlib import Path

import pytest
from erniecore_checkpoint.manifest import read_manifest
from erniecore_ckpt.rewriting import tensor_hashes
from erniecore_conformance.processes import on_ranks

from erniecore.api import ConfigError
from erniecore.api.parallel import ParallelPlan

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
STEP = "step-00000003"
LORA = {"train__accumulation": 2, "train__learning_rate": 3e-4, "adapter__name": "lora", "adapter__rank": 4}
FP8 = {"quantizer__name": "fp8-qat", "quantizer__hadamard_block": 16, "quantizer__scale_warmup": 1}
#: runs of one process; groups and blocks of 16 are not cut through
ALONE = {
    "wint8": {"model": "untied", **LORA, "quantizer__name": "wint8"},
    "wint4": {"model": "untied", **LORA, "quantizer__name": "wint4", "quantizer__group_size": 16},
    "wint4-8": {"model": "moe", **LORA, "quantizer__name": "wint4-8"},
    "ccq": {"model": "moe", **LORA, "quantizer__name": "ccq-2.06", "quantizer__layers": "[mlp.experts.*]"},
    "head": {"model": "moe", **LORA, "quantizer__name": "wint8", "quantizer__head": "int8"},
    "fp8": {"model": "untied", "train__accumulation": 2, **FP8},
    "fp8-moe": {"model": "moe", "train__accumulation": 2, **FP8},
}
TENSOR = {"parallel__name": "hybrid", "parallel__tensor": 2}
SEQUENCE = {**TENSOR, "parallel__sequence": "true"}
EXPERT = {"parallel__name": "hybrid", "parallel__data": 2, "parallel__expert": 2, "train__accumulation": 1}
PIPELINE = {"parallel__name": "hybrid", "parallel__pipeline": 2}
STAGE_3 = {"parallel__name": "hybrid", "parallel__sharding": 2, "parallel__sharding_stage": 3, "train__accumulation": 1}
CONTEXT = {"parallel__name": "hybrid", "parallel__context": 2}
LAYOUTS = {"tensor": TENSOR, "sequence": SEQUENCE, "expert": EXPERT, "pipeline": PIPELINE}
LAYOUTS |= {"stage 3": STAGE_3, "context": CONTEXT}
CASES = [
    *((name, "tensor") for name in ("wint8", "wint4", "wint4-8", "fp8", "fp8-moe")),
    *((name, "expert") for name in ("wint4-8", "ccq", "fp8-moe")),
    ("fp8-moe", "sequence"),
    *((name, "pipeline") for name in ("fp8", "fp8-moe")),
    *(("head", layout) for layout in ("expert", "stage 3", "context")),
]
#: whose codes are looked at, and whose checkpoints go from one process to several and the other way
LOOKED_AT = [("wint4", "tensor"), ("wint4-8", "tensor"), ("wint4-8", "expert"), ("ccq", "expert")]
RESUMED = [("wint4-8", "tensor"), *(("fp8-moe", name) for name in ("tensor", "expert", "pipeline"))]


def label(name, layout):
    return f"{name}-{layout}"


@pytest.fixture(scope="module")
def found(words, tmp_path_factory):
    """(directory, codes by case). ``NAME`` and ``NAME-LAYOUT`` are runs of three steps; ``NAME-LAYOUT-one`` the state of the
    second, read and written by one process; ``NAME-one-LAYOUT`` that of the first, by several."""
    import erniecore

    place = tmp_path_factory.mktemp("quantized")
    helpers = load_helpers()

    def make(out, name, layout="", **more):
        return words(place / out, **{**ALONE[name], **LAYOUTS.get(layout, {}), **more})

    def again(source, out, name, layout=""):
        return make(out, name, layout, run__resume=place / source / "ckpt" / STEP)

    for name in ALONE:
        erniecore.run(overrides=make(name, name), console="none")
    tasks = {
        "runs": [make(label(*case), *case) for case in CASES],
        "saved_again": [again(name, f"{name}-one-{layout}", name, layout) for name, layout in RESUMED],
        "codes": [make(f"codes-{label(*case)}", *case) for case in LOOKED_AT],
    }
    codes = dict(
        zip(
            map(label, *zip(*LOOKED_AT, strict=True)), on_ranks(2, f"{HELPERS}:several", tasks)[0]["codes"], strict=True
        )
    )
    helpers.saved_again(None, [again(label(*case), f"{label(*case)}-one", case[0]) for case in RESUMED])
    alone = {name: helpers.codes(None, [make(f"codes-{name}", name)])[0] for name in dict(LOOKED_AT)}
    return place, codes | alone


def near_in_fp8(both):
    """A sum in another order may put one number on the other side of the middle between two codes, which are 6 % apart; a
    scale of a part instead of the whole would move the loss by a thousandth."""
    found = {key: both.of("step", key) for key in ("loss", "grad_norm", "tokens")}
    print(found, both.weights())
    assert found["loss"] <= 1e-5
    assert found["grad_norm"] <= 1e-3
    assert found["tokens"] == 0
    assert both.weights() <= 1e-3


def near_in_whole_numbers(both):
    """Products of many rows round each block of a row to 15 bits of its largest, and the blocks of a shard are others: weights
    differ by some 2e-5. A scale of a part instead of the whole would move the loss by a thousandth."""
    found = {key: both.of("step", key) for key in ("loss", "grad_norm", "tokens")}
    print(found, both.weights())
    assert found["loss"] <= 1e-6
    assert found["grad_norm"] <= 1e-5
    assert found["tokens"] == 0
    assert both.weights() <= 1e-4


def load_helpers():
    spec = importlib.util.spec_from_file_location("hybrid_helpers", HELPERS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.multiproc
@pytest.mark.slow
def test_layouts_give_the_numbers_of_one_process(found, compared):
    place, wrong = found[0], []
    for name, layout in CASES:
        print(label(name, layout), end=" ")
        both = compared(place / name, place / label(name, layout))
        try:
            near_in_fp8(both) if name.startswith("fp8") else near_in_whole_numbers(both)
        except AssertionError as error:
            wrong.append(f"{label(name, layout)}: {error}")
    assert not wrong, wrong


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), LOOKED_AT)
def test_codes_and_scales_are_those_of_one_process_to_the_bit(found, name, layout):
    _, codes = found
    assert len(codes[name]) >= 2
    assert codes[label(name, layout)] == codes[name]


@pytest.mark.multiproc
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), RESUMED)
def test_checkpoints_go_to_one_process_and_back_to_the_bit(found, name, layout):
    def tensors(out):
        return tensor_hashes(read_manifest(found[0] / out / "ckpt" / STEP))

    assert tensors(f"{label(name, layout)}-one") == tensors(label(name, layout))
    assert tensors(f"{name}-one-{layout}") == tensors(name)
    assert any(key.endswith("activation_scale") for key in tensors(name)) == name.startswith("fp8")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({**ALONE["wint4"], "quantizer__group_size": 64}, "64 inputs share a scale"),
        ({**ALONE["fp8"], "quantizer__hadamard_block": 32}, "mixes 32 inputs"),
        ({**ALONE["fp8"], "quantizer__input_gradient": "e5m2"}, "the whole gradient"),
        ({"model": "untied", "quantizer__name": "fp8-block"}, "128 share a scale"),
        ({**ALONE["ccq"], "model": "untied", "quantizer__layers": "[o_proj]"}, "128 inputs share"),
    ],
)
def test_what_parts_cannot_be_says_why(hybrid_home, words, changes, text, tmp_path):
    from types import SimpleNamespace

    from erniecore_hybrid_parallel.tensor import Shard, shard_model

    from erniecore.engine.preparation.model import model_layout

    context, model = built(words(tmp_path / "run", **changes))
    settings = context.settings
    name, plan = settings.plugins.get("adapter", ""), ParallelPlan({"tensor": 2})
    described = context.model
    layout = model_layout(context.host, described.architecture, described.head, settings.adapter, name, plan)
    comm = SimpleNamespace(size=2, index=0)
    with pytest.raises(ConfigError, match=text) as caught:
        shard_model(model, layout, Shard(comm))
    assert caught.value.problems[0].key.startswith("parallel.tensor")


@pytest.mark.parametrize("head", ["int8", "bf16"])
def test_a_quantized_head_is_whole_on_its_rank(hybrid_home, words, head, tmp_path):
    from erniecore_hybrid_parallel.tensor import check_head, check_packed

    _, model = built(words(tmp_path / "run", **{**ALONE["head"], "quantizer__head": head}))
    with pytest.raises(ConfigError, match=r"parallel\.tensor.*cannot be shared among ranks \(model\.embed_tokens\)"):
        check_packed(model, "parallel.tensor")
    check_packed(model, "parallel.expert")
    with pytest.raises(ConfigError, match=r"parallel\.pipeline.*stages cannot share a quantized head"):
        check_head(model, "parallel.pipeline")
    check_head(built(words(tmp_path / "plain", **ALONE["wint8"]))[1], "parallel.pipeline")


def built(words):
    """What a run of these words has prepared, and its model."""
    from erniecore.config.compose import load
    from erniecore.engine.opening import open_device
    from erniecore.engine.preparation.prepare import prepare
    from erniecore.engine.training.build import build_model

    context = prepare(load(None, words, {}, {}), console="none")
    open_device(context.device, context.cluster, context.kernels)
    return context, build_model(context)
