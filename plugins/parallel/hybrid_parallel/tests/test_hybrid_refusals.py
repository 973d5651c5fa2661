"""Layouts that cannot be: one error that names the key, before any process starts and before the run has a directory."""

import pytest

from erniecore.api import ConfigError, Exit

REPLAY = {
    "model": "moe",
    "method": "grpo",
    "rewards": "[exact-match]",
    "method__max_new_tokens": 8,
    "method__router_replay": "learner",
}
LM_EVAL = {"callbacks__lm-eval__tasks": "[text]"}
SHARDED = {"parallel__sharding": 2}
#: (changes, key, words of the message)
CASES = [
    ({"parallel__tensor": 3}, "parallel.tensor", "4 attention heads"),
    ({"model": "untied", "parallel__tensor": 4}, "parallel.tensor", "2 heads of keys and values"),
    ({"model": "moe", "parallel__data": 3, "parallel__expert": 3}, "parallel.expert", "experts evenly"),
    ({"parallel__data": 2, "parallel__expert": 2}, "parallel.expert", "no experts"),
    ({"parallel__data": 2, "parallel__expert": 4}, "parallel.expert", "have rows of their own"),
    ({"parallel__sharding": 2, "parallel__data": -1}, "parallel.data", "must be ≥ 0"),
    ({"parallel__sharding_stage": 3}, "parallel.sharding_stage", "no meaning"),
    ({"parallel__sharding": 2, "parallel__sharding_stage": 4}, "parallel.sharding_stage", "must be one of 1, 2, 3"),
    ({"parallel__pipeline": 3}, "parallel.pipeline", "3 virtual stages for a model of 2 layers"),
    ({"parallel__pipeline": 2, "parallel__chunks": 2}, "parallel.chunks", "4 virtual stages"),
    ({"parallel__pipeline": 2, "parallel__split": "[2]"}, "parallel.split", "1 numbers for 2"),
    (
        {**SHARDED, "parallel__sharding_stage": 2, "optimizer__name": "lisa"},
        "parallel.sharding_stage",
        "lisa works with 1",
    ),
    (
        {**SHARDED, "parallel__sharding_stage": 3, "optimizer__name": "lisa"},
        "parallel.sharding_stage",
        "lisa works with 1",
    ),
    (
        {"model": "untied", "parallel__context": 2, "quantizer__name": "fp8-block"},
        "quantizer.name",  # what the user has set
        "set quantizer.weight_gradient=exact",
    ),
    ({**REPLAY, "parallel__pipeline": 2}, "method.router_replay", "parallel.pipeline"),
    ({**LM_EVAL, "parallel__pipeline": 2}, "parallel.pipeline", "whole models"),
    ({**LM_EVAL, "model": "moe", "parallel__data": 2, "parallel__expert": 2}, "parallel.expert", "whole models"),
    ({"model": "moe", "model__capacity": "[1, 1, 1]", "parallel__context": 2}, "parallel.context", "whole rows"),
    ({"parallel__pipeline": 2, "method__neftune_alpha": 5}, "method.neftune_alpha", "parallel.pipeline"),
    ({"parallel__context": 2, "method__neftune_alpha": 5}, "method.neftune_alpha", "parallel.context"),
    ({"parallel__data": 2, "parallel__sequence": "true"}, "parallel.sequence", "parallel.tensor"),
    (
        {"parallel__data": 2, "parallel__context_attention": "ring"},
        "parallel.context_attention",
        "parallel.context above 1",
    ),
]


@pytest.mark.parametrize(("changes", "key", "text"), CASES)
def test_impossible_layouts_are_refused_before_anything_starts(words, tmp_path, changes, key, text):
    import erniecore

    with pytest.raises(ConfigError) as caught:
        erniecore.run(overrides=words(tmp_path / "run", parallel__name="hybrid", **changes), console="none")
    assert [problem.key.partition("=")[0] for problem in caught.value.problems] == [key]
    assert text in str(caught.value)
    assert caught.value.exit_code == Exit.USAGE
    assert not (tmp_path / "run").exists()
