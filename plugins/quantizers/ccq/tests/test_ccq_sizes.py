"""Which layer is stored how, and what a model of 300 billion parameters takes then."""

from math import prod

import pytest
from erniecore_ccq.plugin import ccq25, ccq206
from erniecore_weight_only.packing import shapes_of, stored_bytes
from erniecore_weight_only.schemes import choose, packed_bytes, places

from erniecore.api import ConfigError

HIDDEN, LAYERS, EXPERTS, VOCABULARY = 8192, 54, 64, 103424


def shapes_300b():
    """ERNIE-4.5-300B-A47B, from its published config.json; three dense layers first."""
    found = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (HIDDEN, VOCABULARY)}
    for n in range(LAYERS):
        layer = f"model.layers.{n}."
        widths = {"q": HIDDEN, "k": 1024, "v": 1024, "o": HIDDEN}
        found |= {f"{layer}self_attn.{x}_proj.weight": (HIDDEN, width) for x, width in widths.items()}
        mlp, inner = f"{layer}mlp.", 28672
        if n >= 3:
            mlp, inner = f"{layer}mlp.experts.", 3584
            found[f"{layer}mlp.gate.weight"] = (HIDDEN, EXPERTS)
        front, end = ((), ".weight") if n < 3 else ((EXPERTS,), "")
        found |= {f"{mlp}{x}_proj{end}": (*front, HIDDEN, inner) for x in ("gate", "up")}
        found[f"{mlp}down_proj{end}"] = (*front, inner, HIDDEN)
    return found


#: what FastDeploy serves as WINT2: experts of layers 7 on in 2.06 bits, earlier ones in 4, the rest in 8
SERVED = {
    "layers": "mlp.experts.*",
    "int4": "model.layers.[3-6].mlp.experts.*",
    "int8": "self_attn.*_proj,mlp.gate_proj,mlp.up_proj,mlp.down_proj",
}


def size(plugin, settings, head=2):
    """Bytes with embeddings in bfloat16, routers in float32, and so many bytes for each weight of the head."""
    shapes = shapes_300b()
    packed = packed_bytes(shapes, plugin.rules(plugin.Config(**settings)))
    widths = {"lm_head.weight": head} | {name: 4 for name in shapes if name.endswith("mlp.gate.weight")}
    return sum(packed.get(name) or widths.get(name, 2) * prod(shape) for name, shape in shapes.items())


def test_300_billion_parameters():
    assert sum(prod(shape) for shape in shapes_300b().values()) == pytest.approx(299.48e9, rel=1e-4)


def test_the_served_mixture_takes_87_gibibytes_and_89_with_a_wide_head():
    assert size(ccq206, SERVED) == 93_919_166_464
    assert size(ccq206, SERVED, head=4) == 95_613_665_280
    assert size(ccq206, SERVED, head=4) / 2**30 == pytest.approx(89.05, abs=0.005)


def test_bits_per_weight_of_whole_models():
    experts = {n: s for n, s in shapes_300b().items() if "experts" in n}
    weights = sum(prod(shape) for shape in experts.values())
    for plugin, bits in ((ccq25, 2.5), (ccq206, 2.0625)):
        stored_bytes = sum(packed_bytes(experts, plugin.rules(plugin.Config())).values())
        assert bits < 8 * stored_bytes / weights < bits + 0.025


def test_integers_win_over_codes_and_ignore_over_all():
    settings = {"layers": "*", "int4": "self_attn.*", "int8": "q_proj,k_proj", "ignore": "k_proj"}
    shapes = {n: s for n, s in shapes_300b().items() if ".layers.3." in n}
    chosen = choose(places(shapes), ccq25.rules(ccq25.Config(**settings)))
    quant_dtypes = {place.name.rpartition(".")[2]: scheme.quant_dtype for place, scheme in chosen.items()}
    assert quant_dtypes == {"q_proj": "int8", "v_proj": "int4", "o_proj": "int4"} | {
        f"{x}_proj": "ccq-2.5" for x in ("gate", "up", "down")
    }


def test_unknown_pattern_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean q_proj"):
        size(ccq25, {"int8": "qproj"})


@pytest.mark.parametrize("plugin", [ccq25, ccq206], ids=lambda p: p.name)
def test_declared_bytes_are_those_in_memory(plugin, make_moe_model):
    model, config = make_moe_model(), plugin.Config(int8="q_proj", int4="mlp.experts.up_proj")
    before, shapes = stored_bytes(model), shapes_of(model)
    declared = plugin.ernie_packed_bytes(config=config, shapes=shapes)
    floats = sum(4 * prod(shapes[name]) for name in declared)
    plugin.ernie_quantize_model(config=config, model=model, phase="train")
    assert stored_bytes(model) == before - floats + sum(declared.values())
    assert shapes_of(model) == shapes
