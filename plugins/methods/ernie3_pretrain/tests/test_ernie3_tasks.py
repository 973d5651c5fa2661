"""The five objectives as pure functions of the tokens of a sample, over the toy tokenizer, whose tokens are bytes."""

from __future__ import annotations

import numpy as np
import pytest
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_ernie3.orders import order_of
from erniecore_ernie3_pretrain.config import TASKS, Ernie3PretrainConfig
from erniecore_ernie3_pretrain.drawing import SEED, examples_of, pool_of, samples_of, seeded
from erniecore_ernie3_pretrain.encoder import RELATION, Ernie3Encoder
from erniecore_ernie3_pretrain.rows import parse
from erniecore_ernie3_pretrain.tasks import MASKED, Draw, Foreign, hide, task_of

from erniecore.api import RowError
from erniecore.api.data import Document
from erniecore.api.method import IGNORE, Origin
from erniecore.api.training import collate

TOKENIZER = ToyTokenizer()
BEGIN, END, MASK = 1, TOKENIZER.eos_id, 3
FACT = {
    "passage": "Ada Reed was born in Milltown. It rained.",
    "triple": {"head": "Ada Reed", "relation": "born in", "tail": "Milltown"},
}
STORY = {"passage": "Ben has a mill. It is old. It is far. He is old. He goes.", "spans": ["mill", "far"]}


def weights(**chosen):
    return {task: float(chosen.get(task, 0.0)) for task in TASKS}


def draw(length=0, **chosen):
    return Draw(weights(**chosen), length, 0.15, 3, BEGIN, END, MASK, np.arange(10, 250))


def batch(*rows, max_length=200, chosen=None, origin=1):
    encoder = Ernie3Encoder(TOKENIZER, max_length, chosen or weights(kmlm=1, document=1))
    samples = [s for i, row in enumerate(rows) for s in encoder.encode(parse(row, Origin("k", origin + i)))]
    return collate([[sample] for sample in samples], pad_id=0)


def drawn(row, task, *, seeds=range(40), length=0, pool=()):
    """Examples of one objective, a seed each."""
    from dataclasses import replace

    rules = replace(draw(length, **{task: 1.0}), pool=pool)
    found = [examples_of(seeded(batch(row, chosen=weights(**{task: 1.0})), seed), rules)[0] for seed in seeds]
    assert {one.task for one in found} == {task}
    return found


def text(ids):
    return TOKENIZER.decode([int(token) for token in ids])


def test_tokens_know_their_units_sentences_and_parts():
    (one,) = samples_of(batch(FACT))
    tokens = one.tokens
    parts = [text(tokens.ids[tokens.part == part]) for part in (1, 2, 3, 0)]
    assert parts == ["Ada Reed", "born in", "Milltown", FACT["passage"]]
    assert text(tokens.ids[(tokens.part == 0) & (tokens.unit == 0)]) == "Ada Reed"
    assert tokens.ids[tokens.part == 4].tolist() == [END]
    assert sorted(set(tokens.sentence[tokens.part == 0])) == [0, 1]
    assert one.labels.tolist() == [*tokens.ids[1:], END]


def test_a_long_document_is_cut_without_gap_or_overlap():
    whole, pieces = (list(samples_of(batch(STORY, max_length=n))) for n in (200, 20))
    assert len(pieces) == 3
    for name in ("ids", "unit", "sentence"):
        joined = np.concatenate([getattr(one.tokens, name) for one in pieces])
        assert np.array_equal(joined, getattr(whole[0].tokens, name))
    assert np.array_equal(np.concatenate([one.labels for one in pieces]), whole[0].labels)


def test_what_no_objective_can_use_is_an_error_that_says_which_could():
    encode = Ernie3Encoder(TOKENIZER, 60, weights(reorder=1)).encode
    with pytest.raises(RowError, match="no objective") as caught:
        encode(parse(FACT, Origin("k", 1)))
    assert "set method.kmlm" in caught.value.fix
    with pytest.raises(RowError, match="no objective"):
        encode(Document("one sentence"))
    assert len(encode(parse(STORY, Origin("k", 1)))) == 1
    cut = Ernie3Encoder(TOKENIZER, 27, weights(reorder=1)).encode(
        Document("One. Two. Three. Four. Five and no more words")
    )
    assert [s.truncated for s in cut] == ["18 tokens in stretches of one sentence"]
    with pytest.raises(RowError, match="leaves no room") as caught:
        Ernie3Encoder(TOKENIZER, 20, weights(uktp=1)).encode(parse(FACT, Origin("k", 1)))
    assert caught.value.where == "$.triple"
    short = Ernie3Encoder(TOKENIZER, 30, weights(uktp=1)).encode(parse(FACT, Origin("k", 1)))[0]
    assert (len(short), short.truncated) == (30, "35 tokens of the passage")


def test_hidden_are_whole_units_and_about_the_share_that_was_asked():
    found = drawn(STORY, "kmlm", seeds=range(200))
    original = next(samples_of(batch(STORY))).tokens
    shares, kinds = [], {"mask": 0, "random": 0, "kept": 0}
    for one in found:
        ids, labels = one.ids[1:-1], one.labels[1:-1]
        assert (one.ids[0], one.ids[-1]) == (BEGIN, END)
        hidden = labels != IGNORE
        assert np.array_equal(labels[hidden], original.ids[hidden])
        assert np.array_equal(ids[~hidden], original.ids[~hidden])
        for unit in np.unique(original.unit[hidden]):
            where = original.unit == unit
            assert hidden[where].all()
            same, masked = (ids[where] == original.ids[where]).all(), (ids[where] == MASK).all()
            kinds["kept" if same else "mask" if masked else "random"] += 1
        shares.append(hidden.mean())
    assert np.mean(shares) == pytest.approx(0.15, abs=0.02)
    assert kinds["mask"] / sum(kinds.values()) == pytest.approx(MASKED, abs=0.04)
    assert min(kinds.values()) > 20


def test_at_least_one_unit_is_hidden_and_separators_never():
    units = np.array([-1, 0, 0, 0, -1])
    for seed in range(20):
        _, labels = hide(np.arange(10, 15), units, draw(), np.random.default_rng(seed))
        assert (labels != IGNORE).tolist() == [False, True, True, True, False]


def test_a_relation_is_hidden_whole_or_words_of_the_text_but_never_both():
    found = drawn(FACT, "uktp")
    tokens = next(samples_of(batch(FACT))).tokens
    relation = np.concatenate([[False], tokens.part == RELATION, [False]])
    kinds = []
    for one in found:
        hidden = one.labels != IGNORE
        if hidden[relation].any():
            assert np.array_equal(hidden, relation)
            assert (one.ids[relation] == MASK).all()
            assert text(one.labels[hidden]) == "born in"
        else:
            assert not hidden[: 1 + int((tokens.part != 0).sum())].any()
        kinds.append(bool(hidden[relation].any()))
    assert 10 < sum(kinds) < 30


def test_shuffled_segments_in_the_order_of_the_class_are_the_text():
    classes = set()
    for one in drawn(STORY, "reorder", seeds=range(80)):
        order = order_of(one.choice, 3)
        ends = np.flatnonzero(one.ids == END)
        segments = [text(part) for part in np.split(one.ids[1:], ends)[:-1]]
        restored = [segments[order.index(place)] for place in range(len(order))]
        assert "".join(restored) in STORY["passage"]
        assert len(segments) == len(order)
        classes.add(one.choice)
    assert classes == set(range(9))


def test_pairs_are_as_far_apart_as_their_class_says():
    sentences = ["Ben has a mill.", " It is old.", " It is far.", " He is old.", " He goes."]
    pool = (Foreign(b"other", np.array(TOKENIZER.encode("Far away."))),)
    counts = [0, 0, 0]
    for one in drawn(STORY, "distance", seeds=range(90), pool=pool):
        first, second = [text(part) for part in np.split(one.ids[1:], np.flatnonzero(one.ids == END))[:2]]
        apart = sentences.index(second) - sentences.index(first) if second in sentences else 0
        assert one.choice == (0 if apart == 1 else 1 if apart > 1 else 2)
        counts[one.choice] += 1
    assert min(counts) > 15


def test_without_other_documents_and_a_third_sentence_pairs_are_neighbors():
    assert {one.choice for one in drawn({"passage": "One. Two."}, "distance")} == {0}


@pytest.mark.parametrize("task", ["kmlm", "uktp", "reorder", "distance"])
def test_examples_are_as_long_as_is_read_at_once(task):
    row = FACT if task == "uktp" else STORY
    longest = max(len(one.ids) for one in drawn(row, task, length=40))
    assert 20 < longest <= 40
    if task == "reorder":  # at least two sentences, also where a whole one does not fit
        assert {one.choice for one in drawn(row, task, length=16)} == {0, 1, 2}


def test_objectives_are_drawn_by_their_weights_among_those_that_can_use_the_sample():
    tokens = next(samples_of(batch(STORY))).tokens
    chosen = weights(kmlm=1, document=2, reorder=1, uktp=50)
    found = [task_of(tokens, chosen, np.random.default_rng(seed)) for seed in range(800)]
    share = {task: found.count(task) / 800 for task in TASKS}
    assert share == pytest.approx({"kmlm": 0.25, "document": 0.5, "reorder": 0.25, "distance": 0, "uktp": 0}, abs=0.05)


def test_a_draw_is_that_of_the_seed_and_the_text_whatever_is_beside_it():
    rules = draw(kmlm=1, document=1, reorder=1, distance=1, uktp=1)
    chosen = weights(kmlm=1)
    alone = [examples_of(seeded(batch(row, chosen=chosen), 5), rules)[0] for row in (STORY, FACT)]
    encoder = Ernie3Encoder(TOKENIZER, 200, chosen)
    packed = collate([[encoder.encode(parse(row, Origin("k", 9)))[0] for row in (FACT, STORY)], []], pad_id=0)
    together = examples_of(seeded(packed, 5), rules)[::-1]
    for one, other in zip(alone, together, strict=True):
        assert (one.task, one.choice) == (other.task, other.choice)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.labels, other.labels)
    tasks = {examples_of(seeded(batch(STORY, chosen=chosen), seed), rules)[0].task for seed in range(30)}
    assert tasks == {"kmlm", "document", "reorder", "distance"}
    plain = [examples_of(batch(STORY, chosen=chosen), rules)[0] for _ in range(2)]  # evaluation
    assert np.array_equal(plain[0].ids, plain[1].ids)
    assert SEED in seeded(packed, 5).fields


def test_the_pool_has_a_sentence_of_each_document_and_none_of_facts():
    chosen = weights(kmlm=1)
    batches = [batch(STORY, FACT, chosen=chosen), batch(STORY, {"passage": "Far away. Yes."}, chosen=chosen)]
    assert [text(one.ids) for one in pool_of(iter(batches))] == ["Ben has a mill.", "Far away."]


def test_settings_without_an_objective_are_refused():
    with pytest.raises(ValueError, match="no objective has a weight"):
        Ernie3PretrainConfig(**dict.fromkeys(TASKS, 0.0))
    with pytest.raises(ValueError, match="at least 8 tokens"):
        Ernie3PretrainConfig(segment_length=4)
