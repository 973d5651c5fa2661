"""Continuous batching and speculative decoding: nothing but the time depends on the rest of the batch or on draft tokens."""

from pathlib import Path

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_generation.batching import Pool
from erniecore_generation.generate import Decoder, evaluating, pad_left
from erniecore_generation.rollout import roll_out
from erniecore_generation.sampling import Sampling
from erniecore_generation.speculate import NoDraft, make_drafter, ngram_lookup
from erniecore_generation.stepper import Row, Stepper
from hypothesis import given, settings
from hypothesis import strategies as st

from erniecore.engine.models.bundles import load_bundle
from erniecore.errors import UsageError
from erniecore.types.model import Features

FIXTURES = Path(__file__).parents[4] / "tests" / "fixtures" / "models"
LENGTHS = (3, 9, 1, 6, 4, 12, 2)
SAMPLINGS = [
    Sampling(),
    Sampling(do_sample=True, temperature=1.5, top_k=9, seed=3),
    Sampling(do_sample=True, repetition_penalty=1.3, frequency_penalty=0.2, seed=4),
]


@pytest.fixture(scope="module")
def toy():
    return toy_model(3)


@pytest.fixture(scope="module")
def predicting():
    return load_bundle(FIXTURES / "moe_mtp", tokenizer=False, mtp=True).bundle.model


def prompts(vocab, lengths=LENGTHS):
    numbers = np.random.default_rng(7)
    return [numbers.integers(4, vocab, size=n).tolist() for n in lengths]


def alone(model, prompt, sampling, limit, stream, stops=()):
    """Tokens and logits of the plain loop over one row."""
    with evaluating(model):
        decoder = Decoder(
            model, np.array([prompt]), sampling=sampling, max_new_tokens=limit, streams=[stream], stop_ids=stops
        )
        tokens, logits = [], []
        while decoder.live.any() and decoder.steps < limit:
            tokens.append(int(decoder.step()[0]))
            logits.append(decoder.logits[0])
    return tokens, np.stack(logits)


def pooled(model, rows, **options):
    """The pool, and the logits of every row."""
    pool = Pool(model, rows, **options)
    logits = [[] for _ in pool.ids]
    with evaluating(model):
        for chosen in pool.run():
            for row, scores in zip(chosen.rows, chosen.logits, strict=True):
                logits[row].append(scores)
    return pool, [np.stack(found) for found in logits]


class Oracle(NoDraft):
    """Knows the completions and lies about some tokens, so that rows advance at different speeds."""

    def __init__(self, completions, seed):
        self.completions, self.numbers = completions, np.random.default_rng(seed)

    def draft(self, inputs, draw):
        found = []
        for text in inputs.texts:
            completion = next(a for p, a in self.completions if (p + a)[: len(text)] == text)
            size = len(text) - (len(next(p for p, a in self.completions if a is completion)))
            correct = completion[size : size + int(self.numbers.integers(0, 5))]
            found.append([t if self.numbers.random() < 0.8 else (t + 1) % 40 for t in correct])
        return found


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("slots", [1, 3, 0])
def test_a_row_in_the_pool_equals_the_row_alone(toy, sampling, slots):
    rows = prompts(40)
    expected = [alone(toy, row, sampling, 11, i, stops=(5, 6)) for i, row in enumerate(rows)]
    options = {"sampling": sampling, "max_new_tokens": 11, "slots": slots, "stop_ids": (5, 6)}
    pool, logits = pooled(toy, rows, **options)
    for row, (tokens, scores) in enumerate(expected):
        assert pool.completion_ids(row).tolist() == tokens
        assert pool.stopped[row] == (tokens[-1] in (5, 6))
        np.testing.assert_allclose(logits[row], scores, atol=1e-5)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 99), slots=st.integers(1, 7), sampling=st.sampled_from(SAMPLINGS))
def test_accepted_and_rejected_draft_tokens_change_no_token(toy, seed, slots, sampling):
    rows = prompts(40)
    free = [alone(toy, row, sampling, 9, i)[0] for i, row in enumerate(rows)]
    oracle = Oracle(list(zip(rows, free, strict=True)), seed)
    stop = free[0][4]
    expected = [completion[: completion.index(stop) + 1] if stop in completion else completion for completion in free]
    options = {"sampling": sampling, "max_new_tokens": 9, "slots": slots, "stop_ids": (stop,)}
    pool, _ = pooled(toy, rows, **options, drafter=oracle)
    assert [pool.completion_ids(row).tolist() for row in range(len(rows))] == expected
    assert (pool.accepted_tokens >= 0).all()
    assert 0 < pool.accepted_tokens.sum() <= pool.draft_tokens.sum()


def test_rows_have_limits_of_their_own_and_can_be_ended(toy):
    rows, limits = prompts(40, (3, 3, 3)), [2, 7, 5]
    pool = Pool(toy, rows, sampling=Sampling(), max_new_tokens=limits, slots=2)
    with evaluating(toy):
        for chosen in pool.run():
            if 1 in chosen.rows and pool.counts[1] == 4:
                pool.finish(1)
    assert pool.counts.tolist() == [2, 4, 5]


def test_an_impossible_prompt_is_refused_before_any_work(toy):
    with pytest.raises(UsageError, match="prompt is empty"):
        Pool(toy, [[4], []], sampling=Sampling(), max_new_tokens=1)


def test_copies_of_a_prompt_equal_rows_of_their_own(toy):
    rows, tokenizer = prompts(40, (4, 2, 7)), ToyTokenizer()
    options = {"sampling": Sampling(do_sample=True, temperature=2.0, seed=1), "max_new_tokens": 6}
    copied = roll_out(toy, tokenizer, rows, copies=2, batch_size=3, **options)
    single = roll_out(toy, tokenizer, [row for row in rows for _ in range(2)], **options)
    for one, other in zip(copied, single, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


class FixedProbabilities(paddle.nn.Layer):
    """Gives the same distribution everywhere."""

    architecture = {"vocab_size": 3, "num_hidden_layers": 1}
    PROBABILITIES = np.array([0.2, 0.5, 0.3], np.float32)

    def features(self, input_ids, *, position_ids, attention_mask=None, cache=None):
        state = paddle.zeros([*input_ids.shape, 1, 1])
        cache.update(0, state, state)
        return Features(paddle.zeros([*input_ids.shape, 1]))

    def logits(self, hidden):
        return hidden + paddle.to_tensor(np.log(self.PROBABILITIES))


class Always(NoDraft):
    """The same draft tokens for every row."""

    def draft(self, inputs, draw):
        return [[1, 0] for _ in inputs.texts]


def test_sampled_tokens_have_the_models_distribution_whatever_the_draft():
    R, sampling = 3000, Sampling(do_sample=True, seed=2)
    pool, _ = pooled(FixedProbabilities(), [[0]] * R, sampling=sampling, max_new_tokens=3, drafter=Always())
    p, drawn = FixedProbabilities.PROBABILITIES, np.stack([pool.completion_ids(row) for row in range(R)])
    joint = np.zeros((3, 3, 3))
    np.add.at(joint, tuple(drawn.T), 1 / R)
    expected = p[:, None, None] * p[:, None] * p
    assert np.abs(joint - expected).max() < 5 * np.sqrt(expected.max() / R)
    # accepted with the probability that the model gives to the draft token, and the second one only after the first
    rights = np.array([0.5, 0.5 * 0.2])
    met = np.array([(drawn[:, 1] == 1).mean(), ((drawn[:, 1] == 1) & (drawn[:, 2] == 0)).mean()])
    assert np.abs(met - rights).max() < 5 * np.sqrt(0.25 / R)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_the_mtp_layer_drafts_and_changes_no_token(predicting, sampling):
    rows = prompts(448)
    plain, _ = pooled(predicting, rows, sampling=sampling, max_new_tokens=12)
    options = {"sampling": sampling, "max_new_tokens": 12, "slots": 3}
    speculated, _ = pooled(predicting, rows, **options, drafter=make_drafter(predicting, "mtp"))
    assert [i.tolist() for i in map(speculated.completion_ids, range(7))] == [
        i.tolist() for i in map(plain.completion_ids, range(7))
    ]
    assert (speculated.draft_tokens > 0).all()


def test_what_the_mtp_layer_drafts_is_what_it_was_trained_for(predicting):
    """Over a cache with rejected draft tokens, in a batch of different lengths, as in one pass of training."""
    drafter, told = make_drafter(predicting, "mtp"), {}
    plain = drafter.draft

    def listening(inputs, draw):
        found = plain(inputs, draw)
        told.update({tuple(text): draft[0] for text, draft in zip(inputs.texts, found, strict=True)})
        return found

    drafter.draft = listening
    pool, _ = pooled(predicting, prompts(448, (5, 2, 9)), sampling=Sampling(), max_new_tokens=10, drafter=drafter)
    checked = 0
    for text in pool.ids:
        ids = paddle.to_tensor([text])
        predicting.train()
        ahead = predicting.logits(predicting.features(ids).mtp_hidden[0])[0].numpy().argmax(-1)
        predicting.eval()
        known = [n for n in range(2, len(text) + 1) if tuple(text[:n]) in told]
        assert [told[tuple(text[:n])] for n in known] == [int(ahead[n - 2]) for n in known]
        checked += len(known)
    assert checked > 20


def test_a_drafter_that_the_model_lacks_is_refused_by_name(toy):
    with pytest.raises(UsageError, match="no multi-token-prediction layers"):
        make_drafter(toy, "mtp")
    with pytest.raises(UsageError, match="did you mean lookup"):
        make_drafter(toy, "lookpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], [4, 9, 1, 2]),
        ([1, 2, 7, 1, 2, 8, 5, 1, 2], [8, 5, 1, 2]),
        ([6, 6, 6], [6]),
        ([1, 2, 3, 4], []),
        ([1], []),
        ([], []),
    ],
)
def test_lookup_goes_on_as_the_text_did_before(text, expected):
    assert ngram_lookup(text) == expected


@pytest.mark.parametrize("size", [3, 9], ids=["shorter", "longer"])
def test_a_row_takes_the_place_of_one_that_has_ended(toy, size):
    """The others stay where they are, also where the new one has more columns."""
    stepper, texts = Stepper(toy), prompts(260, (4, 5, size))
    with evaluating(toy):
        groups = []
        for ids in texts:
            groups.append(stepper.group([Row(list(ids), Sampling(), 8)], 20))
            ids, real = pad_left([ids], 0)
            list(stepper.decide(groups[-1], stepper.forward(groups[-1], ids, real, logits="last")[0]))
        both = stepper.packed(groups[:2])
        cache = both.cache
        both.rows[0].live = False
        joined = stepper.joined(both, groups[2])
        assert joined.cache is cache
        while joined.live:
            list(stepper.advance(joined))
    for row, ids in zip(joined.rows, (texts[2], texts[1]), strict=True):
        assert row.ids == ids + alone(toy, ids, Sampling(), 8, 0)[0]
