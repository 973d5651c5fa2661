"""Whole passes in one call of a kernel: a token has the same bits however its prompt is divided and whatever stands beside it."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from decoder_models import EVEN, build, decode, packed, prompts
from ernie_third_party_kernels.kernel_set import native
from erniecore_generation.cache import StaticCache
from erniecore_generation.generate import evaluating
from erniecore_generation.passes import Passes
from erniecore_weight_only.schemes import Scheme

pytestmark = pytest.mark.skipif(bool(native.fault()), reason="the library was not built")


def whole_and_in_parts(model, columns=40, parts=((0, 17), (17, 33), (33, 40))):
    """Logits of every column of a prompt [columns, V], from one pass and from several."""
    ids, found = np.random.default_rng(4).integers(3, model.arch.vocab_size, (1, columns)), []
    for ranges in (((0, columns),), parts):
        passes, cache, logits = Passes(model), StaticCache(model.arch.num_hidden_layers, columns), []
        for start, stop in ranges:
            places = np.arange(start, stop)[None]
            logits.append(passes.every(ids[:, start:stop], places, None, cache, logits="all", residual=False)[0][0])
        found.append(np.concatenate(logits))
    return found


def with_bfloat16_head(sizes):
    """A model whose embedding, which is its head, has values of bfloat16 and is stored so."""
    model = build(sizes)
    weight = model.model.embed_tokens.weight
    weight.set_value(weight.astype("bfloat16").astype("float32"))
    model.hold_embedding()
    assert model.model.embed_tokens.weight.dtype == paddle.bfloat16
    return model


@pytest.mark.parametrize("make", [lambda: packed(EVEN, Scheme("int8")), lambda: packed(EVEN, Scheme("int4")),
                                  lambda: with_bfloat16_head(EVEN)])  # fmt: skip
def test_a_prompt_has_the_same_bits_however_it_is_divided(use, make):
    model = make()
    use(2)
    with evaluating(model):
        whole, parts = whole_and_in_parts(model)
    assert np.array_equal(whole, parts)


def test_rows_have_the_bits_that_they_have_alone_before_a_head_in_bfloat16(use):
    model = with_bfloat16_head(EVEN)
    use(1)
    rows = prompts(model, [7, 1, 12, *range(1, 18)])
    logits = decode(model, rows, 3)[1]
    use(2)
    assert np.array_equal(decode(model, rows, 3)[1], logits)
    for row in (0, 2, 19):
        assert np.array_equal(decode(model, [rows[row]], 3)[1][:, 0], logits[:, row])


@pytest.mark.parametrize("threads", [0, 2])
def test_a_pass_without_logits_leaves_the_same_cache(use, threads):
    model, ids = build({}), np.random.default_rng(6).integers(3, 130, (1, 12))
    use(threads)
    found = []
    with evaluating(model):
        for wanted in ("none", "all"):
            passes, cache = Passes(model), StaticCache(2, 12)
            first = passes.every(ids[:, :11], np.arange(11)[None], None, cache, logits=wanted, residual=False)[0]
            assert first.shape[:2] == (1, 0 if wanted == "none" else 11)
            found.append(passes.every(ids[:, 11:], np.array([[11]]), None, cache, logits="last", residual=False)[0])
    assert np.array_equal(*found)
