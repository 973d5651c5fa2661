"""Small models for tests of whole passes in one call of a kernel, in every form of weights, and the greedy loop over them."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from ernie_third_party_kernels import tensors
from ernie_third_party_kernels.kernel_set import native
from erniecore_ernie45.plugin import plugin as dense
from erniecore_ernie45_moe.plugin import plugin as moe
from erniecore_generation.generate import Decoder, evaluating, pad_left
from erniecore_generation.sampling import Sampling
from erniecore_ops import functions as ops
from erniecore_ops import kernels
from erniecore_weight_only.layers import PackedExperts, PackedLinear
from erniecore_weight_only.schemes import STACKED

SIZES = {"hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 10}
SIZES |= {
    "num_key_value_heads": 2,
    "vocab_size": 130,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "initializer_range": 0.2,
}
SIZES |= {"tie_word_embeddings": True, "model_type": "ernie4_5", "max_position_embeddings": 300}
ROUTED = {"model_type": "ernie4_5_moe", "moe_num_experts": 5, "moe_k": 2, "moe_num_shared_experts": 2}
ROUTED |= {"moe_intermediate_size": 24, "moe_layer_start_index": 1, "num_hidden_layers": 3}
KINDS = {
    "dense": {},
    "dense with biases, untied": {"use_bias": True, "tie_word_embeddings": False, "head_dim": 32, "vocab_size": 333},
    "wide": {"hidden_size": 272, "intermediate_size": 304, "head_dim": 64, "num_key_value_heads": 4},
    "moe": ROUTED,
    "moe by sigmoid, with biases": {**ROUTED, "scoring_func": "sigmoid", "use_bias": True, "moe_k": 3},
    "moe alone": {**ROUTED, "moe_num_shared_experts": 0, "moe_layer_start_index": 0, "moe_k": 5},
    "moe with mtp": {**ROUTED, "num_nextn_predict_layers": 1},
}
LENGTHS = (7, 1, 12)


def build(sizes):
    """A model with random weights, biases and selection biases."""
    paddle.seed(5)
    architecture = {**SIZES, **sizes}
    if architecture["model_type"] == "ernie4_5":
        model = dense.ernie_build_model(architecture=architecture, dtype="float32")
    else:
        config = moe.Config(mtp="num_nextn_predict_layers" in sizes)
        model = moe.ernie_build_model(config=config, architecture=architecture, dtype="float32")
    for name, parameter in model.named_parameters():
        if "bias" in name:
            parameter.set_value(0.3 * paddle.randn(parameter.shape))
    return model.eval()


@pytest.fixture
def use(monkeypatch):
    """Take the kernel from here on, with all threads also for little work; or none."""
    monkeypatch.setattr(tensors, "FEWEST_ELEMENTS", 0)

    def choose(threads, isa=""):
        if not threads:
            monkeypatch.delitem(kernels._in_use, "decoder_step", raising=False)
            return
        found = native.load("decoder_step", lambda: threads, isa)
        monkeypatch.setitem(kernels._in_use, "decoder_step", found["decoder_step"])

    return choose


def prompts(model, lengths=LENGTHS):
    rng = np.random.default_rng(2)
    return [rng.integers(3, model.arch.vocab_size, n).tolist() for n in lengths]


def decode(model, rows=None, count=9):
    """(tokens [steps, B], logits, whether passes ran in one call) of the greedy loop."""
    ids, mask = pad_left(prompts(model) if rows is None else rows, 0)
    with evaluating(model):
        decoder = Decoder(model, ids, mask, sampling=Sampling(), max_new_tokens=count)
        steps = [(decoder.step(), decoder.logits) for _ in range(count)]
    return *(np.array(part) for part in zip(*steps, strict=True)), decoder._passes.in_one_call


#: rows of whole lines of the cache, which products in whole numbers take
EVEN = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "moe_intermediate_size": 64}


def packed(sizes, scheme):
    """A mixture of experts with all but its head and its routers in a scheme."""
    model = build({**ROUTED, "use_bias": True, **sizes})
    for layer in model.sublayers():
        for name, inner in list(layer.named_children()):
            if ops.is_plain_linear(inner) and "head" not in name:
                setattr(layer, name, PackedLinear(inner, scheme, name))
            elif name == "experts":
                setattr(layer, name, PackedExperts(inner, dict.fromkeys(STACKED, scheme), name))
    return model
