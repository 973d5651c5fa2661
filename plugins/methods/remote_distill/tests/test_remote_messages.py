"""Questions and replies as bytes: they survive the journey, and nothing else is taken for them."""

import numpy as np
import pytest
from erniecore_distill.cache import TopLogProbs
from erniecore_remote_distill.messages import (
    Asked,
    Question,
    bytes_per_position,
    pack_question,
    pack_reply,
    question_bytes,
    unpack_question,
    unpack_reply,
)
from erniecore_wan.payload import PayloadRefused

ASKED = Asked("weights", "tokenizer", 3, 2.0)
#: the largest vocabulary of each width, and one that needs the next one
VOCABULARIES = (320, 65536, 65537, 103424, 1 << 24, (1 << 24) + 1)


def question(*sizes, vocabulary=320, asked=ASKED):
    rng = np.random.default_rng(0)
    samples = []
    for size in sizes:
        learned = rng.random(size) < 0.5
        learned[-1] = True
        samples.append((rng.integers(0, vocabulary, size), learned))
    return Question(asked, samples)


def values(count, k, vocabulary):
    rng = np.random.default_rng(1)
    log_p = np.log(rng.dirichlet(np.ones(k + 1), count)).astype(np.float32)
    ids = rng.integers(0, vocabulary, (count, k)).astype(np.int32)
    ids[0, 0] = vocabulary - 1
    return TopLogProbs(ids, log_p[:, :k], log_p[:, k])


def test_a_question_survives_the_journey():
    asked = question(5, 1, 17)
    data = pack_question(asked)
    found = unpack_question(data, 320)
    assert found.asked == ASKED
    assert found.num_learned == asked.num_learned
    for (ids, learned), (other, marks) in zip(found.samples, asked.samples, strict=True):
        np.testing.assert_array_equal(ids, other)
        np.testing.assert_array_equal(learned, marks)
    assert len(data) - len(pack_question(question(5, 1))) <= question_bytes(17)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_reply_has_the_same_bits_behind_the_journey(vocabulary):
    told = values(7, 3, vocabulary)
    data = pack_reply(told, vocabulary, "float32")
    for one, other in zip(unpack_reply(data, 7, ASKED, vocabulary), told, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_half_precision_is_rounded_to_three_digits():
    told, asked = values(7, 3, 320), Asked("weights", "tokenizer", 3, 2.0, "float16")
    told.rest[0] = -1e30  # beyond what it can say
    found = unpack_reply(pack_reply(told, 320, "float16"), 7, asked, 320)
    np.testing.assert_array_equal(found.ids, told.ids)
    np.testing.assert_allclose(found.log_p, told.log_p, rtol=1e-3)
    np.testing.assert_allclose(found.rest[1:], told.rest[1:], rtol=1e-3)
    assert found.rest[0] == -65504


@pytest.mark.parametrize(
    ("vocabulary", "form", "each"), [(103424, "float32", 452), (103424, "float16", 322), (320, "float32", 388)]
)
def test_a_reply_has_as_many_bytes_as_the_formula_says(vocabulary, form, each):
    assert bytes_per_position(64, vocabulary, form) == each
    one, two = (len(pack_reply(values(count, 64, vocabulary), vocabulary, form)) for count in (10, 20))
    assert two - one == 10 * each


@pytest.mark.parametrize("what", ["question", "reply"])
def test_no_changed_or_missing_byte_is_accepted(what):
    data = pack_question(question(9)) if what == "question" else pack_reply(values(4, 3, 320), 320, "float32")

    def read(changed):
        return unpack_question(changed, 320) if what == "question" else unpack_reply(changed, 4, ASKED, 320)

    read(data)
    for at in range(len(data)):
        with pytest.raises(PayloadRefused):
            read(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(PayloadRefused):
            read(data[:at])


def test_a_question_is_no_reply():
    with pytest.raises(PayloadRefused, match="no message"):
        unpack_reply(pack_question(question(9)), 4, ASKED, 320)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 0}, {"top_k": True}, {"top_k": 2.5}, {"temperature": 0.0}, {"temperature": float("nan")},
        {"temperature": "1"}, {"form": "pickle"}, {"teacher": 3},
    ],
)  # fmt: skip
def test_headers_that_no_student_writes_are_refused(changes):
    wrong = Asked(**{**vars(ASKED), **changes})
    with pytest.raises(PayloadRefused) as refused:
        unpack_question(pack_question(question(9, asked=wrong)), 320)
    assert refused.value.kind == "damaged"


def test_ids_beyond_the_vocabulary_and_samples_without_a_learned_position_are_refused():
    with pytest.raises(PayloadRefused, match="the vocabulary has 300"):
        unpack_question(pack_question(question(200)), 300)
    nothing = Question(ASKED, [(np.arange(4), np.zeros(4, bool))])
    with pytest.raises(PayloadRefused, match="nothing is learned"):
        unpack_question(pack_question(nothing), 320)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 0.5])
def test_values_that_no_distribution_has_are_refused(wrong):
    told = values(4, 3, 320)
    told.log_p[2, 1] = wrong
    with pytest.raises(PayloadRefused):
        unpack_reply(pack_reply(told, 320, "float32"), 4, ASKED, 320)


def test_a_reply_to_another_question_is_refused():
    data = pack_reply(values(4, 3, 320), 320, "float32")
    for count, asked in ((5, ASKED), (4, Asked("weights", "tokenizer", 2, 2.0))):
        with pytest.raises(PayloadRefused, match="asked were"):
            unpack_reply(data, count, asked, 320)
