"""What a sample with attributes is, and that dropping them leaves what was never there."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.architecture import TOY_ARCHITECTURE
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import ToyLM, toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_controllable.config import ControllableConfig
from erniecore_controllable.dropping import dropped, kept
from erniecore_controllable.encoder import ControllableEncoder
from erniecore_controllable.objective import ControllableObjective
from erniecore_controllable.prompt import GENRE, KEYWORDS, LENGTH, SENTIMENT, TOPIC, prompt_ids
from erniecore_controllable.rows import AttributedDocument, Attributes

from erniecore.api import ConfigError, RowError
from erniecore.api.data import Document
from erniecore.api.method import IGNORE

GENRES = {"news": 2, "poem": 3}
FULL = Attributes("poem", "ants", ("ant", "bee"), "glad")


class Letters:
    """Ids are code points; 1 begins, 2 ends."""

    bos_id, eos_id, vocab_size = 1, 2, 200

    def encode(self, text):
        return [ord(c) for c in text]


def encode(text="ant bee", attributes=FULL, length=200, tokenizer=None):
    tokenizer = tokenizer or Letters()
    [sample] = ControllableEncoder(tokenizer, length, GENRES).encode(AttributedDocument(text, attributes=attributes))
    return sample


def test_a_sample_by_hand():
    sample = encode()
    shown = "".join(chr(i) if i < 200 and i > 2 else f"[{i}]" for i in sample.input_ids)
    assert shown == "[1][202][203][204]Topic: ants\nKeywords: ant, bee\nSentiment: glad\nAbout 2 words\nant bee"
    learned = np.flatnonzero(sample.labels != IGNORE)
    assert "".join(map(chr, sample.labels[learned][:-1])) == "ant bee"
    assert sample.labels[-1] == 2
    assert (learned == np.arange(len(sample) - 8, len(sample))).all()
    counts = {
        one: int((sample.fields["attribute"] == one).sum()) for one in (GENRE, TOPIC, KEYWORDS, SENTIMENT, LENGTH)
    }
    assert counts == {GENRE: 3, TOPIC: 12, KEYWORDS: 19, SENTIMENT: 16, LENGTH: 14}
    assert prompt_ids(Letters(), GENRES, Attributes(genre="news")) == [1, 200, 201]


def test_cut_texts_have_no_end_and_prompts_need_room():
    whole = encode()
    cut = encode(length=len(whole) - 3)
    assert len(cut) == len(whole) - 3
    assert 2 not in cut.labels
    assert cut.truncated
    with pytest.raises(RowError, match="leave no room"):
        encode(length=20)
    with pytest.raises(RowError, match="no soft tokens"):
        encode(attributes=Attributes(genre="novel"))
    with pytest.raises(RowError, match="no text"):
        ControllableEncoder(Letters(), 9, {}).encode(Document(" "))


def batch_of(*samples):
    return collate([list(samples[:2]), list(samples[2:])] if len(samples) > 2 else [list(samples)])


def test_chances():
    """Of 4,000 samples: half are plain, of the others each attribute stays in half, and soft tokens from none to all."""
    sample = encode()
    found = [kept(sample.fields["attribute"], sample.input_ids, seed, 0.5, 0.5) for seed in range(4000)]
    has = {
        one: np.array([k[sample.fields["attribute"] == one].any() for k in found]) for one in (TOPIC, KEYWORDS, LENGTH)
    }
    soft = np.array([int(k[sample.fields["attribute"] == GENRE].sum()) for k in found])
    for one in has.values():
        assert one.mean() == pytest.approx(0.25, abs=0.03)
    assert (has[TOPIC] & has[LENGTH]).mean() == pytest.approx(0.125, abs=0.02)
    np.testing.assert_allclose(np.bincount(soft, minlength=4) / 4000, [0.8125, 0.0625, 0.0625, 0.0625], atol=0.025)
    nothing = ~np.array([(k & (sample.fields["attribute"] > 0)).any() for k in found])
    assert nothing.mean() == pytest.approx(0.5 + 0.5 * 0.5**4 * (0.5 + 0.5 / 4), abs=0.03)
    everything = kept(sample.fields["attribute"], sample.input_ids, 3, 0.0, 0.0)
    assert everything[sample.fields["attribute"] != GENRE].all()


def test_a_model_computes_what_it_computes_without_what_was_dropped():
    """Every subset of attributes, in packed rows: the losses of the texts are those of samples encoded without them."""
    tokenizer = ToyTokenizer()
    known = Attributes("", "ant bee", ("cat",), "dog")
    rows = [("1 ant 1", known), ("2 bee", known), ("3 cat 3 cat", known)]
    samples = [ControllableEncoder(tokenizer, 400, {}).encode(AttributedDocument(t, attributes=a))[0] for t, a in rows]
    model, seen = toy_model(), set()
    for seed in range(12):
        found = dropped(batch_of(*samples), seed, 0.3, 0.5)
        given = {"position_ids": found.position_ids, "startend_row_indices": found.startend_row_indices}
        logits = model(paddle.to_tensor(found.input_ids), **{k: paddle.to_tensor(v) for k, v in given.items()}).numpy()
        places = [(0, 0), (0, len(samples[0])), (1, 0)]
        for sample, (row, start) in zip(samples, places, strict=True):
            keep = kept(sample.fields["attribute"], sample.input_ids, seed, 0.3, 0.5)
            seen.add(keep.tobytes())
            alone = model(paddle.to_tensor(sample.input_ids[keep][None])).numpy()[0]
            np.testing.assert_allclose(logits[row, start : start + len(sample)][keep], alone, atol=2e-5)
            labels = found.labels[row, start : start + len(sample)]
            first = int(np.flatnonzero(sample.fields["attribute"])[-1])
            assert (labels[~keep] == IGNORE).all()
            text = sample.labels[first:]
            assert labels[keep][-len(text) :].tolist() == text.tolist()
            assert (labels[keep][: -len(text)] == IGNORE).all()
        real = found.startend_row_indices[:, 0, :, 0] > np.arange(found.input_ids.shape[1])
        assert found.num_tokens == real.sum()
    assert len(seen) > 10


def test_soft_tokens_that_stay_learn_and_no_others():
    paddle.seed(0)
    model, tokenizer = ToyLM({**TOY_ARCHITECTURE, "vocab_size": 265}), ToyTokenizer()
    made = ControllableObjective(ControllableConfig(genres=GENRES, plain=0, dropout=0), model, tokenizer)
    sample, found = encode("1 ant", Attributes("poem"), tokenizer=tokenizer), set()
    genre = sample.fields["attribute"] == GENRE
    assert sample.input_ids[genre].tolist() == [262, 263, 264]
    for seed in range(20):
        [batch] = made.prepare([batch_of(sample)], step=1, seed=seed)
        model.clear_gradients()
        made(batch, made.normalizers(batch)).loss.backward()
        learned = np.abs(model.embed_tokens.weight.grad.numpy()).sum(1) > 1e-9  # the head has a matrix of its own
        stays = int(kept(sample.fields["attribute"], sample.input_ids, seed, 0.0, 0.0)[genre].sum())
        assert learned[260:].tolist() == [False, False, *(place < stays for place in range(3))]
        found.add(stays)
    assert found == {0, 1, 2, 3}


def test_held_out_texts_without_attributes_lose_what_plain_texts_lose():
    tokenizer, model = ToyTokenizer(), toy_model()
    rows = [("1 ant 1", "ant"), ("2 bee", "bee bee"), ("3 cat 3", "")]
    samples = [encode(text, Attributes(topic=topic), tokenizer=tokenizer) for text, topic in rows]
    batch = batch_of(*samples)
    plain, usual = (ControllableObjective(ControllableConfig(eval_plain=on), model, tokenizer) for on in (True, False))
    losses = {}
    for mode in ("train", "eval"):
        getattr(model, mode)()
        for name, made in (("plain", plain), ("usual", usual)):
            losses[mode, name] = float(made(batch, made.normalizers(batch)).loss)
    total, count = 0.0, 0
    for text, _ in rows:
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        log_p = paddle.nn.functional.log_softmax(model(paddle.to_tensor([ids[:-1]]))[0], axis=-1).numpy()
        total, count = total - log_p[np.arange(len(ids) - 1), ids[1:]].sum(), count + len(ids) - 1
    assert losses["eval", "plain"] == pytest.approx(total / count, rel=1e-5)
    assert abs(losses["eval", "usual"] - losses["eval", "plain"]) > 1e-3
    assert losses["train", "plain"] == losses["train", "usual"] == pytest.approx(losses["eval", "usual"], rel=1e-6)


def test_the_vocabulary_must_have_the_soft_tokens():
    with pytest.raises(ConfigError, match="soft tokens need"):
        ControllableObjective(ControllableConfig(genres={"poem": 63}), toy_model(), ToyTokenizer())
    for count in (0, 64):
        with pytest.raises(ValueError, match="expected 1 to 63"):
            ControllableConfig(genres={"poem": count})
