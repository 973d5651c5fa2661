"""Evaluation by completions on ranks that share the rows, or the model: what one process measures."""

import json

import pytest
from erniecore_conformance.processes import on_ranks

HELPERS = __file__.replace("test_hybrid_evaluating.py", "hybrid_helpers.py")
#: steps that change nothing, so that all runs have the same weights; 11 rows, one rank has less
EVALUATED = {
    "train__learning_rate": 1e-30,
    "train__max_steps": 2,
    "eval__every": 1,
    "checkpoint__export": "false",
    "callbacks__eval-generate__metrics": "[regex,exact-match]",
    "callbacks__eval-generate__options": "{regex: {pattern: '[0-4]', whole: false}}",
    "callbacks__eval-generate__max_new_tokens": 5,
    "callbacks__eval-generate__batch_size": 1,
    "callbacks__eval-generate__completions": 2,
    "callbacks__eval-generate__temperature": 1.0,
}
LAYOUTS = {
    "data": {"parallel__data": 2},
    "sharded": {"parallel__sharding": 2, "parallel__sharding_stage": 2},
    "tensor": {"parallel__tensor": 2},
}


@pytest.mark.multiproc
@pytest.mark.slow
def test_ranks_measure_what_one_process_measures(words, tmp_path):
    import erniecore

    erniecore.run(overrides=words(tmp_path / "alone", **EVALUATED), console="none")
    cases = [words(tmp_path / n, **EVALUATED, **{"parallel__name": "hybrid", **k}) for n, k in LAYOUTS.items()]
    on_ranks(2, f"{HELPERS}:runs", cases, limit=600.0)

    def measured(name):
        lines = map(json.loads, (tmp_path / name / "events.jsonl").read_text().splitlines())
        evals = [{k: v for k, v in e.items() if k.startswith("generate/")} for e in lines if e["event"] == "eval"]
        return evals, (tmp_path / name / "eval-generate.jsonl").read_text()

    expected = measured("alone")
    assert expected[0][0]["generate/regex"] not in (0, 1)
    assert len(expected[0]) == 2
    for name in LAYOUTS:
        assert measured(name) == expected, name
