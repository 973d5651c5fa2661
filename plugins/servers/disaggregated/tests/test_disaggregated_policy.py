"""Which process gets what, when a role changes, and the simulator that runs the same code."""

import itertools
import json

import pytest
from erniecore_disaggregated import simulation, traces
from erniecore_disaggregated.calls import Call
from erniecore_disaggregated.controller import Controller, Targets
from erniecore_disaggregated.policy import (
    PrefixIndex,
    WorkerState,
    choose_decode,
    choose_prefill,
    may_switch,
)
from erniecore_disaggregated.simulation import Arrival, ServiceTimes, Simulation, compare, score
from erniecore_generation.engine.requests import Finished, GenerationRequest, TokenLogprob, Tokens
from erniecore_generation.sampling import Sampling

from erniecore.errors import DataError, EnvironmentFault

TARGETS = Targets(ttft=1.0, tpot=0.1, dwell=5.0, confirm=2)


def worker(name, role, **more):
    return WorkerState(name, role, 1, "open", 8, **more)


def test_a_prompt_goes_where_it_is_computed_first():
    a, b = worker("a", "prefill", queued_tokens=100, prompts=1), worker("b", "prefill")
    a.prefix.add([b"1", b"2", b"3"])
    keys = [b"1", b"2", b"3", b"4"]
    assert a.prefix.hits(keys) == 48
    assert choose_prefill([a, b], keys, 64, "prefix") is b
    a.queued_tokens = 47  # with what it has cached, it is done sooner than one that begins at once
    assert choose_prefill([a, b], keys, 64, "prefix") is a
    assert choose_prefill([a, b], keys, 64, "load") is b
    b.status = "draining"
    a.prompts = 2
    assert choose_prefill([a, b], keys, 64, "load") is None


def test_a_completion_goes_where_rows_are_free():
    a, b = worker("a", "decode", completions=3), worker("b", "decode", completions=3, kv_tokens=10)
    assert choose_decode([b, a]) is a
    a.completions = 10
    assert choose_decode([a, b]) is b
    b.completions = 10
    assert choose_decode([a, b]) is None


def test_an_index_forgets_the_oldest_blocks():
    index = PrefixIndex(4, most=3)
    index.add([b"1", b"2", b"3", b"4"])
    assert (len(index), index.hits([b"1", b"2"]), index.hits([b"2", b"3", b"5"])) == (3, 0, 8)
    index.clear()
    assert index.hits([b"2"]) == 0


def test_the_last_one_of_a_role_keeps_it():
    workers = [worker("a", "prefill"), worker("b", "decode"), worker("c", "decode")]
    assert may_switch(workers, "a") == "a is the last one that is open for prefill"
    assert may_switch(workers, "b") == ""
    workers[2].status = "draining"
    assert "last one" in may_switch(workers, "b")
    workers[1].status = "lost"
    assert may_switch(workers, "b") == "b is lost"


def looks(controller, workers, times, waiting=(), running=()):
    return [controller.look(now, workers, waiting, running) for now in times]


def test_roles_follow_the_target_that_is_missed():
    workers = [worker("a", "prefill"), worker("b", "decode", completions=1), worker("c", "decode")]
    controller = Controller(TARGETS)
    controller.first_token(0.0, 1.5)
    first, second = looks(controller, workers, (0.1, 0.2))
    assert (first, second.name, second.role, second.ttft_pressure) == (None, "c", "prefill", 1.5)
    controller.changed(0.3)
    workers[2].role = "prefill"
    # times from before say nothing, and the other way takes the dwell
    assert looks(controller, workers, (0.4, 0.5)) == [None, None]
    for now in (1.0, 2.0):
        controller.completed(now, 0.3)
    assert looks(controller, workers, (2.1, 2.2, 5.2)) == [None, None, None]
    assert looks(controller, workers, (5.4,))[0].role == "decode"


@pytest.mark.parametrize(
    ("waiting", "running", "completions", "queue", "role"),
    [
        ([1.1], [], 0, 0, None),  # within the hysteresis
        ([5.0], [], 0, 0, "prefill"),
        ([5.0], [0.5], 0, 0, None),  # both are missed: there are too few processes
        ([5.0], [], 7, 0, None),  # one process fewer could not decode what is there
        ([5.0], [], 8, 0, "decode"),  # all rows are taken: that is what requests wait for
        ([5.0], [], 8, 2, None),  # and prompts too
    ],
)
def test_hysteresis_and_what_requests_wait_for(waiting, running, completions, queue, role):
    workers = [worker(name, "prefill", prompts=queue) for name in "ab"]
    workers += [worker(name, "decode", completions=completions) for name in "cd"]
    found = looks(Controller(TARGETS), workers, (0.0, 0.1), waiting, running)[-1]
    assert (None if found is None else found.role) == role


def call(new=8):
    return Call(0, GenerationRequest((1, 2), Sampling(), new), lambda event: None, ())


def test_tokens_are_put_in_order_and_the_end_waits_for_them():
    one = call()
    one.begin("p", "d", {})
    end = Finished("length", 2, 0, 3, 0.0, 0.0, 0.0)
    assert one.tokens(1, Tokens((8, 9))) == []
    assert one.finished(3, end) == []
    *tokens, last = one.tokens(0, Tokens((7,)))
    assert ([token for event in tokens for token in event.ids], last.new_tokens, one.ended) == ([7, 8, 9], 3, True)


def test_a_second_try_gives_only_what_the_client_lacks_and_never_something_else():
    one = call()
    one.begin("p", "d", {})
    assert one.tokens(0, Tokens((7, 8))) == [Tokens((7, 8))]
    one.abandon()
    one.begin("q", "d", {})
    scores = tuple(TokenLogprob(token, -0.5) for token in (8, 9))
    assert one.tokens(0, Tokens((7,))) == []
    assert one.tokens(1, Tokens((8, 9), scores)) == [Tokens((9,), scores[1:])]
    assert one.given == [7, 8, 9]
    one.abandon()
    one.begin("q", "d", {})
    with pytest.raises(EnvironmentFault, match="differs from what was sent"):
        one.tokens(0, Tokens((7, 6)))


TIMES = ServiceTimes(0.005, 0.0004, 0.002, 0.00001, 0.02, 0.004)


def test_the_simulator_takes_the_time_that_was_measured():
    found = Simulation(TIMES, (1, 1), TARGETS, switching=False).run([Arrival(1.0, 100, 11), Arrival(1.0, 200, 1)])
    # 0.005 + 0.0004 * 100, then 0.002 + 0.00001 * 100, then ten steps of one row; the second prompt waits for the first
    by_prompt = {outcome.arrival.prompt: outcome for outcome in found}
    assert by_prompt[100].ttft == pytest.approx(0.045)
    assert by_prompt[100].tpot == pytest.approx((0.003 + 10 * 0.024) / 10)
    assert by_prompt[200].ttft == pytest.approx(0.045 + 0.085)
    assert by_prompt[200].tpot == 0


def test_rows_share_steps_and_cached_beginnings_are_not_computed():
    shared = [Arrival(at, 160, 5, prefix=1, shared=160) for at in (0.0, 1.0)]
    first, second = Simulation(TIMES, (1, 1), TARGETS, switching=False).run(shared)
    assert (first.ttft, second.ttft) == (pytest.approx(0.069), pytest.approx(0.0054))
    plain = Simulation(TIMES, (1, 1), TARGETS, switching=False, policy="load").run(shared)
    assert plain[1].ttft == pytest.approx(0.069)


def test_switching_meets_more_targets_when_the_mix_shifts_and_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(traces, "PHASE_SECONDS", 120.0)
    targets = Targets(ttft=4.0, tpot=0.08)
    trace = traces.made_up("shift", TIMES, 4)
    scores = {entry.name: entry for entry in compare(trace, TIMES, 4, targets)}
    fixed = max(entry.both for name, entry in scores.items() if "switching" not in name)
    moving = [entry for name, entry in scores.items() if "switching" in name]
    assert len(scores) == 6
    assert min(entry.both for entry in moving) > fixed + 0.1
    assert all(entry.switches for entry in moving)
    run = Simulation(TIMES, (2, 2), targets, switching=True)
    assert sorted(run.run(trace), key=lambda o: o.arrival.at)[-1].arrival == trace[-1]
    assert len(run.outcomes) == len(trace)
    assert score("2 + 2, switching", run, targets) == scores["2 + 2, switching"]
    changes = [at for at, _, _ in run.switches]
    assert min(b - a for a, b in itertools.pairwise(changes)) > targets.dwell
    assert simulation.scores_json([scores["2 + 2"]])[0]["switches"] == 0


def test_a_recorded_trace_is_read_and_a_wrong_line_is_named(tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [
        {"at": 2.0, "prompt": 5, "completion": 3},
        {"at": 1.0, "prompt": 50, "completion": 3, "prefix": 1, "shared": 32},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert traces.read_trace(file) == [Arrival(**rows[1]), Arrival(**rows[0])]
    file.write_text('{"at": 1}\n')
    with pytest.raises(DataError, match=r"trace\.jsonl:1"):
        traces.read_trace(file)
