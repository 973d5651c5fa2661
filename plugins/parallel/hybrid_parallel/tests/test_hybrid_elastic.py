"""A run goes on with fewer processes: the same rows in the same order, the same losses."""

import json
from pathlib import Path

import pytest
from erniecore_conformance.processes import on_ranks

from erniecore.api import UsageError

HELPERS = Path(__file__).with_name("hybrid_helpers.py")
#: processes -> micro-batches of a step on each; eight rows together
WAYS = {4: 1, 2: 2, 1: 4}


@pytest.mark.multiproc
@pytest.mark.slow
def test_four_two_and_one_process_make_one_loss_curve(words, tmp_path):
    import erniecore

    def layout(name, count, **more):
        split = {"parallel__name": "hybrid", "parallel__data": count} if count > 1 else {}
        return words(tmp_path / name, train__max_steps=6, train__accumulation=WAYS[count], **split, **more)

    for count, end in ((4, 2), (2, 4)):
        assert on_ranks(count, f"{HELPERS}:until", layout("changing", count, run__until=end)) == [True] * count
    with pytest.raises(UsageError, match=r"rows per step|accumulation"):
        erniecore.run(overrides=[*layout("changing", 1), "train.accumulation=3"], console="none")
    erniecore.run(overrides=layout("changing", 1), console="none")
    erniecore.run(overrides=layout("alone", 1), console="none")
    curves = []
    for name in ("changing", "alone"):
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines() if line]
        curves.append([(e["step"], e["tokens"], e["loss"]) for e in events if e["event"] == "step"])
    assert [c[:2] for c in curves[0]] == [c[:2] for c in curves[1]]
    assert len(curves[0]) == 6
    assert all(abs(a[2] - b[2]) <= 1e-6 * abs(b[2]) for a, b in zip(*curves, strict=True)), curves
