"""``ernie lm-eval``: tasks of lm-evaluation-harness on a model, in-process and offline."""
