"""Pass rates before the first step, hints that become rarer, curricula, and less weight for what is learned well."""

import math

import numpy as np
import pytest
from erniecore_rl.advantages import positive_weights
from erniecore_rl.config import GrpoConfig, UpoConfig
from erniecore_rl.pass_rates import PassRates
from erniecore_rl.prompts import prompts_of
from erniecore_rl.selection import drawn, hint_probability, hint_size, least_pass_rate, prompts_of_step, with_hint
from rl_rollouts import TOKENIZER, conversation, encoded, learned, objective

from erniecore.api import CheckpointError

RECORDS = [conversation(f"q{i}", "abcdefgh") for i in range(8)]


def prompts(records=RECORDS):
    return list(prompts_of(encoded(records)))


# ---- hints


def test_hints_become_rarer_with_steps_and_pass_rate():
    assert hint_probability(0.8, 0.01, 0, 0.7, 0.05) == 0.8
    assert hint_probability(0.8, 0.01, 100, 0.5, 0.05) == pytest.approx(0.8 * math.exp(-0.5), rel=1e-15)
    assert hint_probability(0.8, 0.01, 100, 0.9, 0.05) < hint_probability(0.8, 0.01, 100, 0.5, 0.05)
    # what is never solved gets rarer hints, too; without a floor it would keep them
    assert hint_probability(0.8, 0.01, 1000, 0.0, 0.05) == pytest.approx(0.8 * math.exp(-0.5), rel=1e-15)
    assert hint_probability(0.8, 0.01, 10**6, 0.0, 0.0) == 0.8


def test_a_hint_is_the_beginning_of_the_reference_and_leaves_something_to_complete():
    (prompt,) = prompts(RECORDS[:1])
    n = len(prompt.reference) - 1  # without the end token
    assert hint_size(prompt, 0.5, 100) == n // 2
    assert hint_size(prompt, 0.999, 100) == n - 1
    assert hint_size(prompt, 0.5, 3) == 2
    hinted = with_hint(prompt, 4)
    assert TOKENIZER.decode(hinted.ids.tolist()) == TOKENIZER.decode(prompt.ids.tolist()) + "abcd"
    np.testing.assert_array_equal(hinted.question, prompt.ids)
    assert with_hint(prompt, 0) is prompt


def test_a_share_of_prompts_is_hinted_whatever_the_batches():
    config, rates = GrpoConfig(hint_probability=0.5, hint_decay=0.1), PassRates()
    many = [conversation(f"question {i}", "abcdefgh") for i in range(400)]
    rates.add(prompts(many), [0.5] * 400)
    first, later = (prompts_of_step([encoded(many)], step, config, rates) for step in (1, 30))
    apart = prompts_of_step([encoded(many[:100]), encoded(many[100:])], 1, config, rates)
    shares = [np.mean([p.hint > 0 for p in found]) for found in (first, later)]
    assert shares[0] == pytest.approx(0.5, abs=0.08)
    assert shares[1] == pytest.approx(0.5 * math.exp(-29 * 0.05), abs=0.06)
    assert [p.hint for p in apart] == [p.hint for p in first]
    assert drawn(first[0], 1) != drawn(first[0], 2)


def test_a_hint_is_scored_as_part_of_the_completion_and_not_learned():
    seen = []

    def score(completions):
        seen.extend(completions)
        return [len(c.text) % 3 for c in completions]

    made = objective(score=score, hint_probability=1.0, hint_decay=0.0, max_new_tokens=8, pass_rate_samples=1)
    made.begin(iter([encoded(RECORDS[:2])]), step=0, out=None)
    del seen[:]
    (batch,) = made.prepare([encoded(RECORDS[:2])], step=1, seed=9)
    assert all(c.text.startswith("abcd") for c in seen)
    assert all(c.prompt.endswith("Assistant: ") for c in seen)
    assert max(c.num_tokens for c in seen) <= 8
    hint = TOKENIZER.encode("abcd")
    for ids, labels in zip(batch.input_ids, batch.labels, strict=True):
        first = int(np.flatnonzero(labels >= 0)[0])
        assert ids[first] == hint[-1]  # the hint's last token predicts the first one that is learned
        assert ids[first - 3 : first].tolist() == hint[:3]
    assert made(batch, made.normalizers(batch)).metrics["hinted"] == (2.0, 2.0)


def test_no_decision_is_made_without_pass_rates():
    made = objective(hint_probability=0.5)
    with pytest.raises(CheckpointError, match="was not measured"):
        made.prepare([encoded(RECORDS[:1])], step=1, seed=9)
    with pytest.raises(CheckpointError, match="no pass rates"):
        made.begin(iter([]), step=5, out=None)
    assert objective().begin(iter([]), step=5, out=None) == {}


def test_offline_pairs_have_no_hints():
    with pytest.raises(ValueError, match="without a hint"):
        UpoConfig(pairs="offline", hint_probability=0.1)


# ---- pass rates


def test_pass_rates_are_measured_once_and_are_in_the_checkpoint():
    asked = []

    def score(completions):
        asked.extend(completions)
        return [float("q1" in c.prompt) for c in completions]

    made, again = (objective(score=score, curriculum=[(1, 0.5)], pass_rate_samples=3) for _ in range(2))
    told = made.begin(iter([encoded(RECORDS[:2]), encoded(RECORDS[1:3])]), step=0, out=None)
    third = round(1 / 3, 4)
    assert told == {"kind": "pass-rates", "prompts": 3, "mean": third, "never": round(2 / 3, 4), "always": third}
    assert len(asked) == 9
    again.load_carried(made.carried())
    assert again.begin(iter([]), step=4, out=None) == {}
    one, two = (m.prepare([encoded(RECORDS[:3])], step=1, seed=9)[0] for m in (made, again))
    np.testing.assert_array_equal(one.input_ids, two.input_ids)


# ---- curricula


def test_stages_begin_with_their_step():
    stages = [(3, 0.5), (10, 0.25), (20, 0.0)]
    assert [least_pass_rate(stages, step) for step in (1, 2, 3, 9, 10, 19, 20, 99)] == [
        0,
        0,
        0.5,
        0.5,
        0.25,
        0.25,
        0,
        0,
    ]


def test_hard_prompts_wait_for_their_stage():
    config, rates = GrpoConfig(curriculum=[(1, 0.5), (10, 0.2), (20, 0.0)]), PassRates()
    rates.add(prompts(), [i / 8 for i in range(8)])
    counts = [len(prompts_of_step([encoded(RECORDS)], step, config, rates)) for step in (1, 9, 10, 20)]
    assert counts == [4, 4, 6, 8]
    easiest = prompts_of_step(
        [encoded(RECORDS[:3])], 1, config, rates
    )  # all too hard: the one that is solved most often
    assert [p.ids.tolist() for p in easiest] == [prompts()[2].ids.tolist()]


@pytest.mark.parametrize("stages", [[(0, 0.5)], [(5, 0.5), (5, 0.2)], [(9, 0.5), (5, 0.2)], [(1, 1.5)], [(1, -0.1)]])
def test_impossible_stages_are_refused(stages):
    with pytest.raises(ValueError, match="give pairs of a step"):
        GrpoConfig(curriculum=stages)


# ---- positives that are learned well


def test_positives_lose_weight_only_where_all_three_conditions_hold():
    advantages, entropies = np.array([1.0, 1.0, -1.0, 0.0]), np.array([0.1, 0.4, 0.1, 0.1])
    settings = {"reduction": 0.7, "entropy": 0.3, "accuracy_above": 0.75}
    np.testing.assert_allclose(positive_weights(advantages, entropies, 0.8, **settings), [0.3, 1, 1, 1], rtol=1e-15)
    assert positive_weights(advantages, entropies, 0.75, **settings).tolist() == [1, 1, 1, 1]
    assert (
        positive_weights(advantages, entropies, 1.0, reduction=0.0, entropy=9.0, accuracy_above=0.0).tolist() == [1] * 4
    )


def test_a_reduction_scales_the_advantages_of_positives():
    given = [encoded([conversation("q"), conversation("r")])]
    plain, full = (
        objective(),
        objective(positives_reduction=1.0, positives_entropy=1e9, positives_accuracy=0.0, solved_at=0.3),
    )
    (batch,), (reduced,) = (m.prepare(given, step=1, seed=9) for m in (plain, full))
    np.testing.assert_array_equal(reduced.fields["advantage"], np.minimum(batch.fields["advantage"], 0))
    assert batch.fields["advantage"].max() > 0
    assert np.abs(learned(full, [reduced])[2]).max() > 0
    never = objective(positives_reduction=1.0, positives_entropy=1e-9)
    (same,) = never.prepare(given, step=1, seed=9)
    np.testing.assert_array_equal(same.fields["advantage"], batch.fields["advantage"])
