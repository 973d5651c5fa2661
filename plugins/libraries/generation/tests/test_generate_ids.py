"""The decoding loop on a one-layer toy model: padding, stopping, the cache and refusals."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_generation.generate import Decoder, eos_ids, evaluating, generate, pad_left
from erniecore_generation.sampling import Sampling
from erniecore_ops.attention import attention

from erniecore.errors import UsageError
from erniecore.types.model import Features

VOCAB, LIMIT = 23, 24


class Toy(paddle.nn.Layer):
    """Learned positions, one grouped attention layer with a strong residual, dropout to see the mode."""

    def __init__(self):
        super().__init__()
        self.architecture = {
            "vocab_size": VOCAB, "num_hidden_layers": 1, "max_position_embeddings": LIMIT, "eos_token_id": 2,
        }  # fmt: skip
        generator = np.random.default_rng(5)
        for name, shape in {"tokens": (VOCAB, 16), "places": (LIMIT, 16), "kv": (16, 16), "out": (16, VOCAB)}.items():
            value = paddle.create_parameter(list(shape), "float32")
            value.set_value(generator.normal(size=shape).astype("float32"))
            self.add_parameter(name, value)
        self.dropout = paddle.nn.Dropout(0.5)

    def features(self, input_ids, *, position_ids, attention_mask=None, startend_row_indices=None, cache=None):
        x = self.dropout(self.tokens[input_ids] + self.places[position_ids])
        B, S = input_ids.shape
        k, v = paddle.split((x @ self.kv).reshape([B, S, 2, 8]), 2, axis=2)
        if cache is not None:
            k, v = cache.update(0, k, v)
        inputs = attention(x.reshape([B, S, 2, 8]), k, v, attention_mask=attention_mask)
        return Features(hidden=x + 2 * inputs.reshape([B, S, 16]))

    def logits(self, hidden):
        return hidden @ self.out


@pytest.fixture(scope="module")
def toy():
    return Toy()


def prompts(*lengths):
    generator = np.random.default_rng(sum(lengths))
    return [generator.integers(3, VOCAB, size=n).tolist() for n in lengths]


OPTIONS = [
    {},
    {"do_sample": True, "temperature": 1.5, "seed": 3},
    {"do_sample": True, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.3, "seed": 4},
    {"frequency_penalty": 1.0, "presence_penalty": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_with_and_without_cache_are_equal(toy, options):
    ids, mask = pad_left(prompts(3, 7, 5), 0)
    results = [
        generate(toy, ids, attention_mask=mask, max_new_tokens=12, eos=(), use_cache=use, **options).numpy()
        for use in (True, False)
    ]
    assert results[0].shape == (3, 12)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3]])
def test_a_padded_batch_equals_single_rows(toy, options):
    rows = prompts(2, 9, 5, 6)
    ids, mask = pad_left(rows, 0)
    batch = generate(toy, ids, attention_mask=mask, max_new_tokens=10, **options).numpy()
    for row, prompt in zip(batch, rows, strict=True):
        single = generate(toy, [prompt], max_new_tokens=10, **options).numpy()[0]
        np.testing.assert_array_equal(row[: len(single)], single)


def test_what_lies_in_the_padding_does_not_matter(toy):
    ids, mask = pad_left(prompts(2, 6), 0)
    noisy = np.where(mask == 1, ids, 11)
    results = [generate(toy, x, attention_mask=mask, max_new_tokens=8, eos=()).numpy() for x in (ids, noisy)]
    np.testing.assert_array_equal(*results)


def test_a_stream_gives_the_same_draws_in_any_batch(toy):
    rows = prompts(4, 4, 4)
    sampling = Sampling(do_sample=True, temperature=2.0, seed=9)

    def decode(chosen):
        ids, mask = pad_left([rows[i] for i in chosen], 0)
        with evaluating(toy):
            decoder = Decoder(toy, ids, mask, sampling=sampling, max_new_tokens=6, streams=chosen)
            return np.stack([decoder.step() for _ in range(6)], axis=1)

    np.testing.assert_array_equal(decode([0, 1, 2])[[2, 0]], decode([2, 0]))


def test_rows_end_at_eos_keep_it_and_are_padded(toy):
    ids, mask = pad_left(prompts(3, 4, 5, 6), 0)
    free = generate(toy, ids, attention_mask=mask, max_new_tokens=10, eos=()).numpy()
    stop = int(free[1, 3])
    got = generate(toy, ids, attention_mask=mask, max_new_tokens=10, eos=stop, pad_id=22).numpy()
    for row, full in zip(got, free, strict=True):
        hits = np.flatnonzero(full == stop)
        end = len(full) if len(hits) == 0 else hits[0] + 1
        np.testing.assert_array_equal(row[:end], full[:end])
        assert (row[end:] == 22).all()


def test_generation_stops_when_every_row_has_ended(toy):
    [prompt] = prompts(4)
    free = generate(toy, [prompt], max_new_tokens=10, eos=()).numpy()[0]
    end = int(np.flatnonzero(free == free[2])[0])
    got = generate(toy, [prompt], max_new_tokens=10, stop_token_ids=[int(free[2])]).numpy()
    np.testing.assert_array_equal(got, [free[: end + 1]])


def test_eos_comes_from_the_architecture(toy):
    [prompt] = prompts(4)
    free = generate(toy, [prompt], max_new_tokens=6, eos=()).numpy()[0]
    toy.architecture["eos_token_id"] = [int(free[0]), 5]
    try:
        assert generate(toy, [prompt], max_new_tokens=6).shape == [1, 1]
    finally:
        toy.architecture["eos_token_id"] = 2


def test_compacting_the_batch_changes_nothing(toy, monkeypatch):
    ids, mask = pad_left(prompts(3, 4, 5, 6, 7, 8), 0)
    free = generate(toy, ids, attention_mask=mask, max_new_tokens=12, eos=()).numpy()
    stops = {int(free[0, 1]), int(free[2, 2]), int(free[3, 4])}
    options = {"attention_mask": mask, "max_new_tokens": 12, "eos": stops, "repetition_penalty": 1.01}
    compacted = generate(toy, ids, **options).numpy()
    monkeypatch.setattr(Decoder, "_compact", lambda self: None)
    np.testing.assert_array_equal(compacted, generate(toy, ids, **options).numpy())


def test_the_streamer_sees_every_step(toy):
    inputs = []
    got = generate(toy, prompts(3, 3), max_new_tokens=5, eos=(), streamer=inputs.append).numpy()
    np.testing.assert_array_equal(np.stack(inputs, axis=1), got)


def test_modes_of_sublayers_come_back(toy):
    toy.train()
    toy.dropout.eval()
    generate(toy, prompts(3), max_new_tokens=1)
    assert (toy.training, toy.dropout.training) == (True, False)
    toy.dropout.train()
    with evaluating(toy):
        assert not toy.dropout.training


def test_a_vector_is_one_row_and_a_tensor_is_fine(toy):
    [prompt] = prompts(4)
    expected = generate(toy, [prompt], max_new_tokens=3, eos=()).numpy()
    np.testing.assert_array_equal(generate(toy, prompt, max_new_tokens=3, eos=()).numpy(), expected)
    tensor = paddle.to_tensor([prompt], dtype="int32")
    result = generate(toy, tensor, max_new_tokens=3, eos=())
    assert result.dtype == paddle.int64
    np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([[3] * LIMIT], {}, "longer than the model's context"),
        ([[3] * 20], {"max_new_tokens": 5}, "at most 4 new tokens"),
        ([[]], {}, "prompt is empty"),
        ([[3, VOCAB]], {}, "outside the vocabulary"),
        ([[3, -1]], {}, "outside the vocabulary"),
        ([[3, 4]], {"attention_mask": [[1, 0]]}, "left only"),
        ([[3, 4, 5]], {"attention_mask": [[1, 0, 1]]}, "left only"),
        ([[3, 4]], {"attention_mask": [[1]]}, "differ in shape"),
        ([[3, 4]], {"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_impossible_prompts_are_refused_before_any_work(toy, ids, options, message):
    with pytest.raises(UsageError, match=message):
        generate(toy, ids, **{"max_new_tokens": 1, **options})


def test_the_last_position_can_be_used(toy):
    assert generate(toy, [[3] * 20], max_new_tokens=4, eos=()).shape == [1, 4]


def test_an_unknown_option_is_refused(toy):
    with pytest.raises(TypeError, match="top_kk"):
        generate(toy, [[3]], max_new_tokens=1, top_kk=3)


def test_eos_ids_reads_numbers_lists_and_absence():
    assert eos_ids({"eos_token_id": 2}, None, {}, {"eos_token_id": [3, 4]}, {"eos_token_id": None}) == {2, 3, 4}
