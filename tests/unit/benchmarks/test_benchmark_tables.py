"""The benchmarks' own arithmetic: FLOPs, medians, ratios, peers that do not run."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def benchmarks(monkeypatch):
    """A module of the benchmarks by name; they are no package that is installed."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def record(peer, seconds, **result):
    steps = [9.0, *seconds]  # the first one is the warm-up
    facts = {"tokens_per_step": 100, "steps": len(seconds), "step_s_all": steps, "step_s": 1.0, "gflops": 8.0}
    return {
        "case": "c",
        "peer": peer,
        "others": 0.0,
        "result": {**facts, "cpu_s_per_step": 2.0, "peak_rss_mb": 10.0, **result},
    }


def test_ratio_is_ours_over_theirs_at_the_median_step_of_all_turns(benchmarks):
    table = benchmarks("benchmarks.compare").table
    text = table([record("ernie", [1.0]), record("hf", [2.0, 4.0]), record("hf", [8.0]), record("ernie", [1.0])])
    ours, theirs = (line.split(" | ") for line in text.splitlines()[-2:])
    assert ours[2:4] == ["100", "1.000"]
    assert theirs[2:4] == ["25", "4.000"]
    assert theirs[7] == "4.00"


def test_a_peer_that_does_not_run_is_shown_with_its_reason(benchmarks):
    failed = {"case": "c", "peer": "pf", "others": 0.0, "error": "Traceback\nNo kernel"}
    assert "| c | pf | does not run: No kernel" in benchmarks("benchmarks.compare").table([failed])


def test_only_environments_that_exist_take_part(benchmarks, monkeypatch, tmp_path):
    compare = benchmarks("benchmarks.compare")
    for name in ("HF", "PF"):
        monkeypatch.setenv(f"ERNIE_BENCH_{name}", str(tmp_path / name))
    (tmp_path / "HF" / "bin").mkdir(parents=True)
    (tmp_path / "HF" / "bin" / "python").touch()
    assert list(compare.installed_peers()) == ["ernie", "hf"]


def test_flops_of_a_training_step(benchmarks):
    model = {
        "arch": "dense", "hidden": 4, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 2, "intermediate": 8, "vocab": 10,
    }  # fmt: skip
    workload = {"kind": "train", "model": model, "seq": 3, "batch": 2}
    linear = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8 + 4 * 10
    assert benchmarks("common").count_flops(workload, "sft", 2) == 6 * linear * 6 + 3 * 2 * (2 * 3 * 3 * 4)


def test_flops_of_low_rank_updates_and_of_a_reference(benchmarks):
    """Frozen matrices have half a backward pass; DPO has a forward pass more, and both answers behind their prompts."""
    model = {
        "arch": "dense", "hidden": 4, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 2, "intermediate": 8, "vocab": 10,
    }  # fmt: skip
    pairs = {"pairs": 1, "prompt": 1, "response": 2}
    workload = {"kind": "train", "model": model, "seq": 3, "batch": 2, "dpo": pairs}
    linear = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8 + 4 * 10
    update = 2 * (8 + 6 + 6 + 8 + 3 * 12)
    scores = 2 * (2 * 3 * 3 * 4)
    count_flops = benchmarks("common").count_flops
    assert count_flops(workload, "lora", 2) == (4 * linear + 6 * update) * 6 + 3 * scores
    assert count_flops(workload, "dpo", 2) == count_flops(workload, "lora", 2) + 2 * linear * 6 + scores


def test_experts_that_are_not_visited_cost_only_the_router(benchmarks):
    common = benchmarks("common")
    model = {
        "arch": "moe", "hidden": 4, "layers": 2, "heads": 1, "kv_heads": 1, "head_dim": 4, "intermediate": 8, "vocab": 10,
        "experts": 8, "top_k": 2, "shared_experts": 1, "moe_intermediate": 6, "moe_start": 1,
    }  # fmt: skip
    (more, update), (few, same) = (common.linear_sizes({**model, "experts": n}, 2) for n in (16, 8))
    assert (more - few, update - same) == (4 * 8, 0)


def test_a_command_without_json_is_an_error_not_a_result(benchmarks, tmp_path):
    run_json = benchmarks("benchmarks.machine").run_json
    command = [sys.executable, "-c", "import sys; print('half'); sys.exit('no such kernel')"]
    found = run_json(command, {}, tmp_path)
    assert "result" not in found
    assert found["error"] == "no such kernel"


def test_every_operator_that_a_kernel_may_replace_is_measured(benchmarks):
    from erniecore.kernels import OPERATORS

    cases = benchmarks("benchmarks.operator_cases")
    assert {*cases.CASES, *cases.ELSEWHERE} == set(OPERATORS), "a new operator needs a case"


def test_the_slower_of_the_two_limits_counts(benchmarks):
    operators = benchmarks("benchmarks.operators")
    limits = operators.Limits(bytes=10e9, flops=100e9)
    moved, computed = (operators.Case("c", None, (), *sizes) for sizes in ((10e9, 1e9), (1e9, 400e9)))
    assert [limits.least_seconds(case) for case in (moved, computed)] == [1.0, 4.0]
    line = operators.row(operators.Found("c", computed, 8.0, 16.0), limits)
    assert line == "| c | 4e+02 | 16000.00 | 8000.00 | 2.0 | 0.1 | 50.0 | 0.50 |"


def test_ours_is_a_share_of_each_peers_time_to_the_first_step(benchmarks):
    table = benchmarks("benchmarks.first_step").table
    runs = {"ernie": [5.0, 4.0, 3.0], "pf": [8.0, 16.0, 9.0]}
    found = {name: [{"wall_s": s, "cpu_s": s / 2, "others": 0.0} for s in seconds] for name, seconds in runs.items()}
    ours, theirs, none = table({**found, "pf-cli": [{"error": "no\naccelerator"}]}).splitlines()[-3:]
    assert ours == "| ernie | 4.00 | 2.00 |  |  | 0.00 |"
    assert theirs == "| pf | 9.00 | 4.50 | 44% | 44% | 0.00 |"
    assert none.startswith("| pf-cli | does not start: accelerator |")


def test_growth_with_experts_is_of_the_same_turns(benchmarks):
    """A slow turn of both is no growth."""
    experts = benchmarks("benchmarks.experts")
    few = [experts.Step(1.0, 2.0, 0.5), experts.Step(9.0, 2.0, 0.5), experts.Step(1.0, 2.0, 0.5)]
    many = [experts.Step(1.1, 2.4, 0.6), experts.Step(9.9, 2.4, 0.6), experts.Step(1.1, 2.4, 0.6)]
    lines = experts.table(4, {8: few, 128: many}, {8: 10_000_000, 128: 90_000_000}).splitlines()
    assert lines[0] == "## 2,048 tokens a step"
    assert lines[-1] == "| 128 | 90.0 | 1.100 | +10 % | 2.400 | +20 % | 0.600 | +20 % |"
