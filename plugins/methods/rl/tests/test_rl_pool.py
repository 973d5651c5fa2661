"""The replay buffer: order of the data, no length bias, what goes on in the next step, checkpoints."""

from contextlib import nullcontext
from threading import Barrier, Thread

import numpy as np
import pytest
from erniecore_conformance import toy_model
from erniecore_generation.rollout import Rollout, roll_out
from erniecore_generation.sampling import Sampling
from erniecore_rl.pool import PREFIX, RolloutPool, joined
from erniecore_rl.prompts import Given, Prompt, prompts_of
from rl_rollouts import TOKENIZER, conversation, encoded, learned, objective

from erniecore.api import CheckpointError
from erniecore.api.method import Origin


def rollout(length, finished):
    return Rollout(np.arange(length), -np.ones(length), np.ones(length), finished)


NOTHING = Given(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Simulated:
    """Rollouts of given lengths, one token of each per pass."""

    def __init__(self, lengths_of_step, first=0, stride=1):
        """Of every ``stride``-th prompt, from ``first`` on."""
        self.lengths_of_step, self.first, self.stride, self.passes = lengths_of_step, first, stride, 0

    def steps(self, first, size):
        return {
            step: [
                Prompt(np.array([step, i]), NOTHING, None, Origin("", 0))
                for i in range(self.first, len(self.lengths_of_step[step]), self.stride)
            ]
            for step in range(first, first + size)
        }

    def wanted(self, prompts):
        return [self.lengths_of_step[step][i] for step, i in (prompt.ids.tolist() for prompt in prompts)]

    def go_on(self, prompts, begun, until):
        wanted = self.wanted(prompts)
        needed = max(length - len(one.ids) for length, one in zip(wanted[:until], begun, strict=False))
        self.passes += max(needed, 0)
        new = [min(len(one.ids) + needed, length) for length, one in zip(wanted, begun, strict=True)]
        return [rollout(n, n == length) for n, length in zip(new, wanted, strict=True)]


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("kind", ["exponential", "pareto", "constant"])
def test_every_step_learns_from_its_own_prompts_whatever_their_lengths(size, kind):
    random = np.random.default_rng(size)
    draw = {"exponential": lambda: 1 + random.exponential(20, 6), "pareto": lambda: 1 + 9 * random.pareto(1.2, 6)}
    lengths = {s: np.int64(draw.get(kind, lambda: np.full(6, 9))()).clip(1, 500) for s in range(1, 50)}
    simulated, pool = Simulated(lengths), RolloutPool(1)
    for step in range(1, 40):
        taken, earlier = pool.take(simulated.steps(step, size), simulated.go_on)
        assert [len(one.ids) for one in taken] == lengths[step].tolist()  # all of them, and to their end
        assert all(one.finished for one in taken)
        assert earlier.max() <= lengths[step].max()
    alone = sum(lengths[s].max() for s in range(1, 40))
    assert simulated.passes <= alone
    if kind != "constant":
        assert simulated.passes < 0.8 * alone  # the long ones are not waited for alone


def test_a_buffer_that_takes_what_ends_first_prefers_short_completions():
    """The same stream of prompts and as many rows at a time; only which completions a step learns from differs."""
    random = np.random.default_rng(0)
    lengths = {s: (1 + random.exponential(30, 8)).astype(np.int64) for s in range(1, 200)}
    simulated, pool, ours = Simulated(lengths), RolloutPool(1), []
    for step in range(1, 31):
        taken, _ = pool.take(simulated.steps(step, 4), simulated.go_on)
        ours.append(np.mean([len(one.ids) for one in taken]))
    stream = iter(enumerate(np.concatenate(list(lengths.values())).tolist()))
    left, whole, first = {}, {}, []
    while len(first) < 30:
        for number, length in (next(stream) for _ in range(32 - len(left))):
            left[number] = whole[number] = length
        ended = sorted(left, key=left.__getitem__)[:8]  # the eight with the least left
        first.append(np.mean([whole[number] for number in ended]))
        left = {number: n - left[ended[-1]] for number, n in left.items() if number not in ended}
    everything = np.mean([lengths[s].mean() for s in range(1, 31)])
    assert np.mean(ours) == pytest.approx(everything)
    assert np.mean(first[:8]) < 0.8 * np.mean(ours[:8])  # the policy that learns has never seen the long ones yet


class SimulatedRanks:
    """Two processes, each with every other prompt of a step, that decode until the completions of both have ended."""

    def __init__(self, lengths_of_step):
        self.ranks = [Simulated(lengths_of_step, rank, 2) for rank in range(2)]
        self.barrier, self.said = Barrier(2), [0, 0]

    def go_on(self, rank):
        def further(prompts, begun, until):
            wanted = self.ranks[rank].wanted(prompts)
            left = [length - len(one.ids) for length, one in zip(wanted, begun, strict=True)]
            self.said[rank] = max(left[:until])
            self.barrier.wait()
            needed = max(self.said)
            self.barrier.wait()
            new = [min(len(one.ids) + needed, length) for length, one in zip(wanted, begun, strict=True)]
            return [rollout(n, n == length) for n, length in zip(new, wanted, strict=True)]

        return further

    def learned(self, pools, steps, size):
        """What each process learns from, by step: lengths, and how many tokens of each were begun earlier."""
        found = [{}, {}]

        def run(rank):
            for step in steps:
                taken, earlier = pools[rank].take(self.ranks[rank].steps(step, size), self.go_on(rank))
                found[rank][step] = [len(one.ids) for one in taken], earlier.tolist()

        threads = [Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def some_lengths():
    random = np.random.default_rng(3)
    return {s: (1 + random.exponential(20, 6)).astype(np.int64) for s in range(1, 50)}


def alone(lengths, size):
    """The same of one process with all prompts."""
    simulated, pool, found = Simulated(lengths), RolloutPool(1), {}
    for step in range(1, 21):
        taken, earlier = pool.take(simulated.steps(step, size), simulated.go_on)
        found[step] = [len(one.ids) for one in taken], earlier.tolist()
    return found


def interleaved(parts):
    return [value for pair in zip(*parts, strict=True) for value in pair]


def test_two_processes_learn_together_from_what_one_learns_from_in_the_order_of_the_data():
    lengths, size = some_lengths(), 3
    found = SimulatedRanks(lengths).learned([RolloutPool(1), RolloutPool(1)], range(1, 21), size)
    for step, (taken, earlier) in alone(lengths, size).items():
        assert interleaved([one[step][0] for one in found]) == taken == lengths[step].tolist()
        assert interleaved([one[step][1] for one in found]) == earlier  # also what was begun earlier is the same


@pytest.mark.parametrize("after", [2, 1])
def test_pools_of_two_processes_go_on_with_two_and_with_one(after):
    lengths, size = some_lengths(), 3
    pools = [RolloutPool(1), RolloutPool(1)]
    SimulatedRanks(lengths).learned(pools, range(1, 11), size)
    checkpoint = {name: value for pool in pools for name, value in pool.arrays().items()}
    assert len(checkpoint) == sum(len(pool.arrays()) for pool in pools)  # no name of one is a name of the other
    again = [RolloutPool(1) for _ in range(after)]
    for pool in again:
        pool.load(checkpoint)
    if after == 2:
        found = SimulatedRanks(lengths).learned(again, range(11, 21), size)
        found = {step: [interleaved([one[step][i] for one in found]) for i in range(2)] for step in range(11, 21)}
    else:
        simulated, found = Simulated(lengths), {}
        for step in range(11, 21):
            taken, earlier = again[0].take(simulated.steps(step, size), simulated.go_on)
            found[step] = [[len(one.ids) for one in taken], earlier.tolist()]
    assert found == {step: list(pair) for step, pair in alone(lengths, size).items() if step > 10}


# ---- rollouts


@pytest.fixture(autouse=True)
def completions_of_many_lengths(monkeypatch):
    """One token in seven ends a completion."""
    monkeypatch.setattr("erniecore_generation.rollout.stop_token_ids", lambda *_: frozenset(range(0, 512, 7)))


def records(step):
    return [conversation("abcdefgh"[i] * (1 + i) + str(step)) for i in range(3)]


def pooled(**config):
    made = objective(rollout_pool=3, max_new_tokens=12, **config)
    made.batches_of = lambda step: [encoded(records((step - 1) // made.repeats + 1))]
    return made


def prepared(made, step):
    return made.prepare(made.batches_of(step), step=step, seed=100 + step)


def test_decoding_stops_when_the_first_completions_have_ended():
    prompts, options = [[1, 80, 81], [1, 90], [1, 70, 71, 72]], {"max_new_tokens": 12, "copies": 4}
    sampling = Sampling(do_sample=True, seed=5)
    whole = roll_out(toy_model(), TOKENIZER, prompts, sampling=sampling, **options)
    part = roll_out(toy_model(), TOKENIZER, prompts, sampling=sampling, until=4, **options)
    for one, begun in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one.ids[: len(begun.ids)], begun.ids)
    assert [len(one.ids) for one in part[:4]] == [len(one.ids) for one in whole[:4]]
    assert sum(len(one.ids) for one in part) < sum(len(one.ids) for one in whole)


def test_decoding_goes_on_until_the_completions_of_other_processes_have_ended():
    prompts, options = [[1, 80, 81], [1, 90], [1, 70, 71, 72]], {"max_new_tokens": 12, "copies": 4}
    sampling = Sampling(do_sample=True, seed=5)
    whole = roll_out(toy_model(), TOKENIZER, prompts, sampling=sampling, **options)
    for passes in (3, 40):  # of the other process
        said = []

        def ended(own, said=said, passes=passes):
            said.append(own)
            return own and len(said) >= passes

        part = roll_out(toy_model(), TOKENIZER, prompts, sampling=sampling, until=4, ended=ended, **options)
        longest = max(len(one.ids) for one in whole[:4])
        assert said == [False] * (longest - 1) + [True] * (len(said) - longest + 1)
        assert len(said) == max(passes, longest)
        for one, begun in zip(whole, part, strict=True):
            np.testing.assert_array_equal(one.ids[: len(said)], begun.ids)
    none = iter([False, False, True])
    nothing = {"max_new_tokens": [], "ended": lambda own: next(none)}
    assert roll_out(toy_model(), TOKENIZER, [], sampling=sampling, **nothing) == []
    assert next(none, None) is None  # one without anything to decode asks as often as the others


def test_ranks_that_share_passes_rest_before_they_ask():
    """And one with nothing to decode rests as often, so that it makes the passes that the others need."""
    model, order = toy_model(), []

    class Shared(type(model)):
        def decoding(self):
            return nullcontext()

        def rest(self):
            order.append("rest")

        def cached_layers(self, count):
            return range(count)

    model.__class__ = Shared
    asked = iter([False] * 5 + [True])

    def ended(own):
        order.append(own)
        return next(asked)

    sampling = Sampling(do_sample=True, seed=5)
    (one,) = roll_out(model, TOKENIZER, [[1, 80, 81]], sampling=sampling, max_new_tokens=3, until=1, ended=ended)
    assert len(one.ids) <= 3
    assert order[::2] == ["rest"] * 6
    assert order[1::2] == [False] * (len(one.ids) - 1) + [True] * (7 - len(one.ids))


def test_a_rollout_goes_on_where_it_was():
    one, two = rollout(3, False), rollout(2, True)
    assert joined(one, two).ids.tolist() == [0, 1, 2, 0, 1]
    assert joined(one, two).finished


@pytest.mark.parametrize("repeats", [1, 2])
def test_steps_learn_from_their_own_prompts_in_the_order_of_the_data(repeats):
    made, shares = pooled(updates_per_rollout=repeats), []
    for step in range(1, 4 * repeats + 1):
        batches = prepared(made, step)
        expected = {tuple(p.ids.tolist()) for b in made.batches_of(step) for p in prompts_of(b)}
        starts = {
            tuple(p)
            for p in (
                row[: len(prompt)].tolist()
                for b in batches
                for row in b.input_ids
                for prompt in expected
                if row[: len(prompt)].tolist() == list(prompt)
            )
        }
        assert starts == expected
        assert sum(made.normalizers(b)["completions"] for b in batches) == 12
        share = made(batches[0], made.normalizers(batches[0])).metrics.get("begun_earlier")
        shares += [] if share is None else [share[0] / share[1]]
    assert len(shares) == 4
    assert shares[0] == 0
    assert 0 < max(shares[1:]) <= 1
    assert shares[1] > 0


def test_tokens_keep_the_log_probabilities_of_the_policy_that_sampled_them():
    """Between two steps the weights change: what was sampled before has a gap to the learner, the rest has none."""
    made = pooled(group_size=2)
    made.batches_of = lambda step: [encoded(records(step)[: 1 if step == 1 else 3])]
    prepared(made, 1)  # two completions end while six more go on
    begun = made._pool.arrays()
    weight = made.policy.lm_head.weight
    weight.set_value(weight * 1.5)
    (batch,) = prepared(made, 2)
    gap = np.abs(batch.fields["sampled"] - batch.fields["old"])[batch.labels >= 0]
    (lengths,) = (value for name, value in begun.items() if name.startswith(f"{PREFIX}00000002.") and "lengths" in name)
    old = int(lengths.sum())
    assert (gap > 1e-4).sum() == pytest.approx(old, abs=2)  # a token of probability near 1 has hardly any
    assert (gap <= 1e-4).sum() >= len(gap) - old > 0


def test_the_pool_continues_from_a_checkpoint_bit_for_bit():
    made, again = pooled(updates_per_rollout=2), pooled(updates_per_rollout=2)
    assert not made.carries  # what differs by process has names of its own
    for step in (1, 2, 3):
        prepared(made, step)
    again.load_carried({name: value.copy() for name, value in made.carried().items()})
    for step in (4, 5, 6):
        one, two = prepared(made, step), prepared(again, step)
        for left, right in zip(one, two, strict=True):
            np.testing.assert_array_equal(left.input_ids, right.input_ids)
            np.testing.assert_array_equal(left.fields["sampled"], right.fields["sampled"])
        assert learned(made, one)[1] == learned(again, two)[1]


def test_rollouts_of_other_prompts_are_refused():
    made, other = pooled(), pooled(group_size=2)
    prepared(made, 1)
    other.load_carried(made.carried())
    with pytest.raises(CheckpointError, match="group_size"):
        prepared(other, 2)


def test_a_skipped_step_leaves_the_pool():
    made = pooled()
    prepared(made, 1)
    prepared(made, 3)
    assert {name.split(".")[1] for name in made._pool.arrays()} == {"00000004", "00000005"}
