"""Load on servers: what is asked, what is computed of the times, and a short soak of a real server."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from talker import make_talker

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks import load, serving, soak


def test_arrivals_and_lengths_follow_their_distributions():
    asked = load.Load(2000, load.Lengths.parse("uniform:5:9"), load.Lengths.parse("lognormal:20:0.5:60"), 4.0, shared=3)
    requests = load.draw(asked)
    assert requests == load.draw(asked)
    assert requests != load.draw(replace(asked, seed=1))
    gaps = np.diff([0.0, *(request.at for request in requests)])
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as exponential ones are
    assert {len(request.ids) for request in requests} == {8, 9, 10, 11, 12}
    assert len({request.ids[:3] for request in requests}) == 1
    probing = load.draw(replace(asked, probes=4))
    assert [(r.at, r.ids) for r in probing] == [(r.at, r.ids) for r in requests]
    assert [n for n, r in enumerate(probing) if r.probe] == list(range(3, 2000, 4))
    assert {r.new for r in probing if r.probe} == {1}
    new = [request.new for request in requests]
    assert (np.median(new), min(new) >= 1, max(new) <= 60) == (pytest.approx(20, abs=1), True, True)
    with pytest.raises(ValueError, match="expected constant:N"):
        load.Lengths.parse("uniform:5")


def test_rates_percentiles_and_goodput_are_those_of_the_times():
    times = [load.Timed(10, first=0.1 * n, last=0.1 * n + 0.9, tokens=10) for n in range(1, 11)]
    slow = load.Timed(10, first=0.1, last=10.0, tokens=10)
    told = load.summary([*times, slow, load.Timed(10, error="status 429")], 5.0, ttft=0.5, tpot=0.2)
    assert (told["requests"], told["failed"], told["errors"]) == (12, 1, ["status 429"])
    assert (told["requests_per_s"], told["goodput_per_s"]) == (2.2, 1.0)
    assert (told["new_tokens_per_s"], told["all_tokens_per_s"]) == (22.0, 44.0)
    assert told["ttft_ms_p50"] == pytest.approx(500)
    assert told["tpot_ms_p50"] == pytest.approx(100)
    assert told["e2e_ms_p99"] > told["e2e_ms_p95"] > told["e2e_ms_p50"]
    probes = [load.Timed(10, first=0.2, last=0.1 * n, tokens=1, probe=True) for n in range(1, 11)]
    probed = load.summary([*times, slow, *probes], 5.0, ttft=0.5, tpot=0.2)
    assert probed["one_token_ms_p50"] == pytest.approx(550)
    assert [probed[name] for name in told if "ms" in name] == [told[name] for name in told if "ms" in name]


def test_two_servers_are_compared_by_the_medians_of_their_rounds():
    ours = [{"what": "ernie serve", "new_tokens_per_s": n, "one_token_ms_p95": 30.0} for n in (10.0, 30.0, 80.0)]
    other = {"what": "llama.cpp", "new_tokens_per_s": 20.0, "one_token_ms_p95": 60.0}
    assert serving.compared([*ours, other]) == [
        {"what": "ours / llama.cpp", "new_tokens_per_s": 1.5, "one_token_ms_p95": 0.5}
    ]
    assert serving.compared(ours) == []


def test_what_is_not_given_back_is_found():
    good = soak.Seen(0.0, 100 << 20, 8, 7, 0, 1 << 20)
    assert soak.leaks([good] * 6) == []
    for change, said in (
        ({"rss": 200 << 20}, "memory grew"),
        ({"files": 9}, "files grew from 8 to 9"),
        ({"threads": 8}, "threads grew"),
        ({"running": 2}, "2 rows are taken"),
        ({"prefix": 8 << 20}, "prefix cache has"),
    ):
        [found] = soak.leaks([*[good] * 5, replace(good, **change)])
        assert said in found


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_talker(tmp_path_factory.mktemp("serving")) / "model"


def test_a_server_is_measured_under_load(model, monkeypatch, capsys):
    words = ["--model", model, "--keep", model.parent, "--requests", "12", "--rate", "20", "--prompt", "uniform:4:20"]
    words += ["--probes", "3"]
    monkeypatch.setattr(sys, "argv", ["serving", *map(str, words), "--new", "constant:6", "waiting=64"])
    assert serving.main() == 0
    row = dict(pair.split("=") for pair in capsys.readouterr().out.strip().split("  ") if "=" in pair)
    assert (row["requests"], row["failed"]) == ("12", "0")
    assert float(row["new_tokens_per_s"]) * float(row["seconds"]) == pytest.approx(8 * 6 + 4, rel=0.02)
    assert float(row["one_token_ms_p50"]) > 0
    assert float(row["ttft_ms_p50"]) <= float(row["e2e_ms_p50"])


def test_a_soak_finds_nothing_in_our_server_and_sees_an_answer_that_is_another(model, monkeypatch):
    """The shape of a longer one: `python -m benchmarks.serving --soak 60`. In its second part
    the references lack an end, so streamed answers differ from them."""
    clean = soak.run(model, model.parent, minutes=0.06, seed=1, settings=["context=96"], between=0.6)
    assert clean["found"] == []
    assert min(clean["answered"], clean["left"], clean["refused"]) > 0
    original = soak.told
    monkeypatch.setattr(soak, "told", lambda answer: [*original(answer)[:-1], {}] if "choices" in answer else answer)
    wrong = soak.run(model, model.parent, minutes=0.01, seed=1, between=0.6)
    assert "when it was alone" in wrong["found"][0]
