"""The serving engine: what requests get, how they end, and what an error of one does to the others."""

import threading

import numpy as np
import paddle  # noqa: TID253
import pytest
from engines import GREEDY, Caller, ask, engine_of
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_generation.engine.requests import (
    EngineStopped,
    Failed,
    Finished,
    GenerationRequest,
    PromptScored,
    QueueFull,
)
from erniecore_generation.generate import generate
from erniecore_generation.sampling import Sampling

from erniecore.errors import NumericsError, UsageError


def test_log_probabilities_are_those_of_the_model(fixtures, running):
    model, ids = fixtures["dense"], list(range(20, 60))
    caller = ask(running(model), ids, new=3, logprobs=2, prompt_logprobs=3)
    text = ids + caller.ids
    logits = model.logits(model.features(paddle.to_tensor([text])).hidden)[0].astype("float64")
    expected = paddle.nn.functional.log_softmax(logits).numpy()
    _, new, [prompt], reason = caller.outcome
    assert reason == "length"
    assert prompt[0] is None
    assert len(prompt) == len(ids)
    for place, entry in enumerate([*prompt[1:], *new]):
        assert entry.token == text[place + 1]
        np.testing.assert_allclose(entry.logprob, expected[place, entry.token], atol=1e-5)
        assert [token for token, _ in entry.top] == np.argsort(-expected[place], kind="stable")[
            : len(entry.top)
        ].tolist()
        assert entry.logprob == np.float32(entry.logprob)
    assert {len(entry.top) for entry in new} == {2}


def test_a_prompt_can_be_scored_alone(fixtures, running):
    engine = running(fixtures["dense"])
    caller = ask(engine, [5, 6, 7], new=0, prompt_logprobs=0)
    assert caller.end.reason == "length"
    assert [type(event) for event in caller.events] == [PromptScored, Finished]
    with pytest.raises(UsageError, match="nothing to generate"):
        ask(engine, [5], new=0)


def test_the_end_of_a_prompt_is_scored_behind_a_cached_beginning(fixtures, running):
    engine, ids = running(fixtures["dense"], invariant=True), [7 + n % 50 for n in range(70)]
    [whole] = ask(engine, ids, new=0, prompt_logprobs=2).outcome[2]
    for start in (70, 66, 40):  # the first of these puts the beginning there
        caller = ask(engine, ids, new=0, prompt_logprobs=2, scored_from=start)
        assert caller.outcome[2] == [(*[None] * start, *whole[start:])]
        assert caller.end.cached_tokens // 16 == (start - 1) // 16


def test_a_scored_prompt_may_have_one_token_more_than_the_context(fixtures, running):
    ids = [3 + n % 40 for n in range(65)]
    expected = ask(running(fixtures["dense"]), ids, new=0, prompt_logprobs=1).outcome
    narrow = running(fixtures["dense"], context=64)
    assert ask(narrow, ids, new=0, prompt_logprobs=1).outcome == expected
    with pytest.raises(UsageError, match="longer than the model's context"):
        ask(narrow, [*ids, 3], new=0, prompt_logprobs=1)


class Only:
    """Allows one sequence; fails where it is told to."""

    def __init__(self, tokens, vocab, packed, fails=False):
        self.left, self.vocab, self.packed, self.fails = list(tokens), vocab, packed, fails

    def allowed(self):
        if self.fails and len(self.left) == 1:
            raise RuntimeError("no grammar")
        mask = np.zeros(self.vocab, bool)
        mask[self.left[0]] = True
        return np.packbits(mask, bitorder="little") if self.packed else mask

    def accept(self, token):
        assert token == self.left.pop(0)

    def done(self):
        return not self.left


@pytest.mark.parametrize("packed", [False, True])
def test_a_constraint_decides_what_may_come_and_when_it_is_over(fixtures, running, packed):
    engine = running(fixtures["dense"])
    caller = ask(engine, [5, 6], new=9, constraint=Only([9, 8, 7], 512, packed))
    assert (caller.ids, caller.end.reason) == ([9, 8, 7], "stop")


def test_a_request_that_fails_leaves_the_others_alone(fixtures, running):
    engine, model = running(fixtures["dense"]), fixtures["dense"]
    good = [ask(engine, [5, 6, n], new=12) for n in range(3)]
    bad = ask(engine, [5, 6], new=9, constraint=Only([9, 8], 512, False, fails=True))
    assert isinstance(bad.end, Failed)
    assert str(bad.end.error) == "no grammar"
    assert bad.ids == [9]
    assert [caller.ids for caller in good] == [
        generate(model, [[5, 6, n]], max_new_tokens=12, eos=()).numpy()[0].tolist() for n in range(3)
    ]
    assert (engine.stats().failed, engine.stats().state) == (1, "running")


def test_logits_that_are_not_finite_end_the_request_that_met_them(running):
    model = toy_model(3)
    weight = next(p for n, p in model.named_parameters() if p.shape == [260, 16])
    poisoned = weight.numpy()
    poisoned[30] = np.nan
    weight.set_value(poisoned)
    engine = running(model)
    bad, good = ask(engine, [4, 30], new=3), ask(engine, [4, 5], new=3)
    assert isinstance(bad.end.error, NumericsError)
    assert isinstance(good.end, Finished | Failed)
    assert engine.stats().state == "running"


def test_an_error_of_the_engine_fails_everybody_with_its_cause(running, monkeypatch):
    model, broken = toy_model(3), threading.Event()
    features = model.features

    def breaks(*args, **options):
        if broken.is_set():
            raise MemoryError("the device is gone")
        return features(*args, **options)

    monkeypatch.setattr(model, "features", breaks)
    engine = running(model, rows=2)
    callers = [ask(engine, [4, 5], new=50) for _ in range(5)]
    broken.set()
    assert {str(caller.end.error) for caller in callers} == {"the device is gone"}
    assert engine.stats().state == "failed"
    assert "the device is gone" in engine.stats().error
    with pytest.raises(EngineStopped, match="takes no requests") as caught:
        ask(engine, [4])
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_cancelled_request_frees_its_row_within_a_step(toy, running):
    """The listener cancels from inside a step; the next one belongs to the request that waited."""
    engine, order = running(toy, rows=1), []
    first, second = Caller(), Caller()

    def listener(event):
        order.append((engine.stats().steps, type(event)))
        if len(order) == 3:
            engine.cancel(first.ticket)
        first(event)

    gate = threading.Event()
    blocked = Caller()
    blocked.ticket = engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait() and blocked(event))
    first.ticket = engine.submit(GenerationRequest((4, 5), GREEDY, 90), listener)
    second.ticket = engine.submit(GenerationRequest((4, 6), GREEDY, 1), second)
    gate.set()
    assert second.end.reason == "length"
    assert (first.end.reason, first.end.new_tokens) == ("abort", 3)
    steps = engine.stats().steps
    assert order[3][1] is Finished
    assert steps - order[2][0] == 1


def test_a_listener_that_raises_ends_its_own_request(toy, running):
    engine = running(toy)

    def raises(event):
        raise KeyError

    engine.submit(GenerationRequest((4, 5), GREEDY, 50), raises)
    assert len(ask(engine, [4, 5], new=60).ids) == 60
    assert engine.stats().aborted == 1


def test_what_cannot_be_done_is_refused_at_once(toy, running):
    engine = running(toy, rows=1, waiting=1, context=20)
    with pytest.raises(UsageError, match="prompt is empty"):
        ask(engine, [])
    with pytest.raises(UsageError, match="do not fit"):
        ask(engine, [4] * 10, new=11)
    with pytest.raises(UsageError, match="outside the vocabulary"):
        ask(engine, [4], sampling=Sampling(logit_bias=((260, 1.0),)))
    with pytest.raises(UsageError, match="no such adapter"):
        ask(engine, [4], adapter="x")
    gate = threading.Event()
    engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait())
    waiting = ask(engine, [5], new=2)
    with pytest.raises(QueueFull, match="too many requests wait"):
        ask(engine, [6])
    gate.set()
    assert len(waiting.ids) == 2
    for name in ("logprobs", "prompt_logprobs", "min_new_tokens"):
        with pytest.raises(UsageError, match="below zero"):
            ask(engine, [4], **{name: -1})


def test_a_listener_that_heard_of_the_end_may_submit_the_next_request(toy, running):
    """With a queue of none: the row is free when its request has ended, not a turn later."""
    engine, follower, seen = running(toy, rows=1, waiting=0), Caller(), []

    def listener(event):
        if isinstance(event, Finished):
            seen.append(engine.stats().running)
            try:
                engine.submit(GenerationRequest((4, 6), GREEDY, 3), follower)
            except QueueFull as error:
                follower(Failed(error))

    engine.submit(GenerationRequest((4, 5), GREEDY, 2), listener)
    assert len(follower.ids) == 3
    assert seen == [0]


def test_a_constraint_that_leaves_only_the_end_decides_before_the_least_length(fixtures, running):
    engine = running(fixtures["dense"])
    shortest = ask(
        engine, [5, 6], new=9, min_new_tokens=6, stop_ids=frozenset({7}), constraint=Only([9, 7], 512, False)
    )
    assert (shortest.ids, shortest.end.reason) == ([9, 7], "stop")


def test_lower_priorities_come_first(toy, running):
    engine, gate, order = running(toy, rows=1), threading.Event(), []
    engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait())
    for priority in (2, 0, 1, 0):
        request = GenerationRequest((5,), GREEDY, 1, priority=priority)
        engine.submit(request, lambda event, mine=priority: order.append(mine) if isinstance(event, Finished) else None)
    gate.set()
    engine.stop(drain=True)
    assert order == [0, 0, 1, 2]


def test_stopping_drains_or_aborts(toy):
    for drain, reasons in ((True, ["length"] * 3), (False, ["abort"] * 3)):
        engine = engine_of(toy, rows=2)
        engine.start()
        callers = [ask(engine, [4, n], new=60) for n in (5, 6, 7)]
        engine.stop(drain=drain)
        assert [caller.end.reason for caller in callers] == reasons
        with pytest.raises(EngineStopped):
            ask(engine, [4])


@pytest.mark.parametrize("drain", [True, False])
def test_a_listener_may_stop_the_engine(toy, drain):
    engine, callers = engine_of(toy, rows=2), [Caller(), Caller()]

    def listener(event):
        if not callers[0].events:
            engine.stop(drain=drain)
        callers[0](event)

    gate = threading.Event()
    engine.start()
    engine.submit(GenerationRequest((4,), GREEDY, 1), lambda event: gate.wait())
    engine.submit(GenerationRequest((4, 5), GREEDY, 30), listener)
    engine.submit(GenerationRequest((4, 6), GREEDY, 30), callers[1])
    gate.set()
    engine._thread.join(60)
    assert engine.stats().state == "stopped"
    assert {caller.end.reason for caller in callers} == {"length" if drain else "abort"}


def test_an_engine_that_is_stopped_while_it_starts_ends(toy, monkeypatch):
    engine, begun, gate = engine_of(toy), threading.Event(), threading.Event()
    prepare = engine._prepare

    def slow():
        begun.set()
        gate.wait()
        return prepare()

    monkeypatch.setattr(engine, "_prepare", slow)
    engine._thread.start()
    begun.wait()
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    while engine.stats().state == "new":
        pass
    gate.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert engine.stats().state == "stopped"


def test_the_prefix_cache_drops_the_end_of_a_text_before_its_beginning(toy, running):
    """What lacks its beginning is never found again."""
    ids = list(range(4, 36))
    probe = running(toy)
    ask(probe, ids, new=1)
    probe.stop()
    size = probe.stats().prefix_bytes // probe.stats().prefix_blocks
    engine = running(toy, prefix_bytes=4 * size)
    ask(engine, ids, new=1).over.wait()
    assert ask(engine, ids, new=1).end.cached_tokens == 16


def test_nothing_is_left_after_two_hundred_requests(toy, running):
    """Neither rows, caches nor blocks beyond the limit."""
    engine, numbers = running(toy, rows=4, prefix_bytes=20000), np.random.default_rng(0)
    callers = []
    for _ in range(200):
        ids = numbers.integers(4, 40, int(numbers.integers(1, 30))).tolist()
        callers.append(ask(engine, ids, new=int(numbers.integers(1, 6)), stream=len(callers)))
        if numbers.random() < 0.2:
            engine.cancel(callers[int(numbers.integers(len(callers)))].ticket)
    for caller in callers:
        caller.over.wait()
    engine.stop()
    stats, scheduler = engine.stats(), engine._scheduler
    assert stats.finished + stats.aborted == 200
    assert stats.aborted > 0
    assert (stats.running, stats.waiting) == (0, 0)
    assert not scheduler.jobs
    assert not scheduler._prefills
    assert not scheduler.lanes[""].groups
    assert 0 < stats.prefix_bytes <= 20000
    assert stats.prefix_bytes == sum(block.num_bytes for block in engine._prefix._blocks.values())
