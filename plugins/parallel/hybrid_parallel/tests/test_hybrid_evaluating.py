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
#: a task of lm-evaluation-harness, on ranks that have whole models
TASK = """task: text
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{messages[0]['content']}}}}"
metric_list: [{{metric: bits_per_byte}}]
"""
LAYOUTS = {
    "data": {"parallel__data": 2},
    "sharded": {"parallel__sharding": 2, "parallel__sharding_stage": 2},
    "parameters": {"parallel__sharding": 2, "parallel__sharding_stage": 3},
    "tensor": {"parallel__tensor": 2},
    "pipeline": {"parallel__pipeline": 2, "train__accumulation": 2},
}
#: layouts of ranks with parts of the model, on which only completions are evaluated
INCOMPLETE = ("tensor", "pipeline")


@pytest.mark.multiproc
@pytest.mark.slow
def test_ranks_measure_what_one_process_measures(words, hybrid_home, tmp_path):
    import erniecore

    (tmp_path / "text.yaml").write_text(TASK.format(data=hybrid_home / "eval.jsonl"))
    harness = {"callbacks__lm-eval__tasks": "[text]", "callbacks__lm-eval__include_path": tmp_path}
    erniecore.run(overrides=words(tmp_path / "alone", **EVALUATED, **harness), console="none")
    cases = [
        words(
            tmp_path / name, **EVALUATED, parallel__name="hybrid", **layout, **({} if name in INCOMPLETE else harness)
        )
        for name, layout in LAYOUTS.items()
    ]
    on_ranks(2, f"{HELPERS}:runs", cases, limit=600.0)

    def measured(name, *prefixes):
        lines = map(json.loads, (tmp_path / name / "events.jsonl").read_text().splitlines())
        evals = [{k: v for k, v in e.items() if k.startswith(prefixes)} for e in lines if e["event"] == "eval"]
        return evals, (tmp_path / name / "eval-generate.jsonl").read_text()

    for name in LAYOUTS:
        prefixes = ("generate/",) if name in INCOMPLETE else ("generate/", "lm-eval/")
        expected, found = measured("alone", *prefixes), measured(name, *prefixes)
        for one, other in zip(expected[0], found[0], strict=True):  # a layer with shards is no part of a kernel's pass
            assert other == pytest.approx(one, rel=1e-6, abs=0), name
        assert found[1] == expected[1], name
        assert expected[0][0]["generate/regex"] not in (0, 1)
        assert len(expected[0]) == 2
        assert len(expected[0][0]) == 3 + len(prefixes)
