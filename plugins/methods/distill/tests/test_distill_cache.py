"""The teacher's log-probabilities on disk: read again, complete or not at all, separate by teacher and settings."""

import os

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_distill.cache import Cache, TopLogProbs, key_of
from erniecore_distill.teachers import CachedTeacher, OnlineTeacher, samples_of
from erniecore_sft.encoder import SftEncoder
from guarded import guarded

from erniecore.api import CheckpointError
from erniecore.api.data import Conversation, Message
from erniecore.api.method import IGNORE

FACTS = {"teacher": "a", "top_k": 3}


def values(n, seed=0):
    rng = np.random.default_rng(seed)
    return TopLogProbs(
        rng.integers(0, 9, (n, 3)).astype(np.int32),
        rng.normal(size=(n, 3)).astype(np.float32),
        rng.normal(size=n).astype(np.float32),
    )


def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def key(text):
    return text.encode().ljust(16)


def samples(*words):
    encoder = SftEncoder(ToyTokenizer(), 60)
    made = []
    for i, word in enumerate(words):
        made += encoder.encode(Conversation((Message("user", "Q" * (i + 1)), Message("assistant", word))))
    return made


WORDS = ("ant", "beetle", "cat", "dd", "eel")


def test_what_was_kept_is_found_by_another_process(tmp_path):
    cache = Cache(tmp_path, FACTS)
    for name, n in (("one", 4), ("two", 1)):
        cache.add(key(name), values(n, n))
    cache.flush()
    cache.add(key("three"), values(2, 2))
    cache.flush()
    again = Cache(tmp_path, FACTS)
    assert len(again) == 3
    for name, n in (("one", 4), ("two", 1), ("three", 2)):
        assert same(again.get(key(name)), values(n, n))
    assert again.get(key("four")) is None
    assert again.num_bytes > 0


def test_other_teachers_and_settings_have_other_directories(tmp_path):
    cache = Cache(tmp_path, FACTS)
    cache.add(key("one"), values(4))
    cache.flush()
    for changed in ({"teacher": "b"}, {"top_k": 4}):
        assert len(Cache(tmp_path, {**FACTS, **changed})) == 0


def test_half_a_shard_is_no_shard(tmp_path):
    cache = Cache(tmp_path, FACTS)
    (cache.directory / ".shard-0-1").mkdir()
    (cache.directory / ".shard-0-1" / "keys.npy").write_bytes(b"half")
    assert len(Cache(tmp_path, FACTS)) == 0


def test_two_processes_may_write_the_same(tmp_path):
    caches = [Cache(tmp_path, FACTS) for _ in range(2)]
    for cache in caches:
        cache.add(key("one"), values(4))
    for cache in caches:
        cache.flush()
    assert len(Cache(tmp_path, FACTS)) == 1


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(p.read_bytes()[:-9]), lambda p: p.unlink()])
@pytest.mark.parametrize("part", ["keys", "log_p"])
def test_damage_is_an_error_with_a_remedy(tmp_path, part, damage):
    cache = Cache(tmp_path, FACTS)
    cache.add(key("one"), values(4))
    cache.flush()
    damage(next(cache.directory.glob(f"shard-*/{part}.npy")))
    with pytest.raises(CheckpointError, match="damaged"):
        Cache(tmp_path, FACTS)


def test_a_shard_that_is_truncated_while_it_is_used_ends_the_process_with_its_name(tmp_path):
    """Touching what is gone is SIGBUS, no exception."""
    cache = Cache(tmp_path, FACTS)
    cache.add(key("one"), values(4000))
    cache.flush()

    def use():
        os.truncate(next(cache.directory.glob("shard-*/log_p.npy")), 300)
        return len(cache.get(key("one")).log_p.sum(axis=0))

    done = guarded(use)
    assert done.code == 5, done
    assert "log_p.npy has 300 bytes now" in done.err


def test_a_pickle_is_refused(tmp_path):
    cache = Cache(tmp_path, FACTS)
    cache.add(key("one"), values(4))
    cache.flush()
    file = next(cache.directory.glob("shard-*/keys.npy"))
    np.save(file, np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(CheckpointError):
        Cache(tmp_path, FACTS)


def test_the_key_knows_what_is_learned():
    ids = np.arange(9)
    learned = ids > 4
    assert key_of(ids, learned) != key_of(ids, ids > 5)
    assert key_of(ids, learned) == key_of(ids.astype(np.int32), learned)
    assert len({key_of(ids, learned, media) for media in ((), ("a",), ("b",), ("a", "b"), ("ab",))}) == 5


def test_samples_of_packed_rows():
    made = samples(*WORDS)
    batch = collate([made[:3], made[3:]], padding=4)
    found = list(samples_of(batch))
    assert [s.input_ids[0].tolist() for s in found] == [s.input_ids.tolist() for s in made]
    assert [s.labels[0].tolist() for s in found] == [s.labels.tolist() for s in made]


class Opened:
    """Counts how often the teacher's model is opened."""

    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return toy_model(1), True


def kept(tmp_path, opened):
    return CachedTeacher(Cache(tmp_path, FACTS), opened, top_k=3, temperature=2.0)


def arrays(teaching):
    return [teaching.ids.numpy(), teaching.log_p.numpy(), teaching.rest.numpy()]


def test_cached_values_are_those_of_the_model(tmp_path):
    made = samples(*WORDS)
    batch = collate([made[:3], made[3:]])
    asked = OnlineTeacher(toy_model(1), top_k=3, temperature=2.0).teaching(batch, 0)
    found = kept(tmp_path, Opened()).teaching(batch, 2)
    np.testing.assert_array_equal(found.ids.numpy(), asked.ids.numpy())
    for one, two in zip(arrays(found)[1:], arrays(asked)[1:], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_the_model_is_not_opened_when_all_is_known(tmp_path):
    made = samples(*WORDS)
    first, second = Opened(), Opened()
    teacher = kept(tmp_path, first)
    before = arrays(teacher.teaching(collate([made]), 0))
    teacher.cache.flush()
    # the same samples in another order and packing have the same bits
    after = arrays(kept(tmp_path, second).teaching(collate([[s] for s in made], padding=3), 5))
    assert (first.count, second.count) == (1, 0)
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)


def test_positions_that_are_not_learned_are_not_asked_about(tmp_path):
    made = samples("ant")
    teaching = kept(tmp_path, Opened()).teaching(collate([made]), 0)
    assert teaching.ids.shape[0] == int((made[0].labels != IGNORE).sum())
    assert teaching.ids.dtype == paddle.int64
