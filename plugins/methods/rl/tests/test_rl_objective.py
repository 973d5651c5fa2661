"""Encoder, rollouts and objective over the toy model: which rows and tokens count, what is dropped, what is carried."""

from dataclasses import replace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance import toy_model
from erniecore_generation.rollout import Rollout, completions_of, roll_out
from erniecore_generation.sampling import Sampling
from erniecore_preference.encoder import CHOSEN, REJECTED
from erniecore_rl import batches
from erniecore_rl.batches import completions_of as completions_in
from erniecore_rl.batches import from_arrays, to_arrays
from erniecore_rl.encoder import PairPromptEncoder, PromptEncoder
from erniecore_rl.prompts import prompts_of
from erniecore_rl.upo import UpoObjective, best_and_worst
from rl_rollouts import TOKENIZER, by_bytes, conversation, encoded, learned, objective

from erniecore.api import CheckpointError, RowError
from erniecore.api.data import Conversation, Message, Preference
from erniecore.api.method import Origin

# ---- rows


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ((Message("assistant", "hello"),), "ERN-D075"),
        ((Message("user", "hello"),), "ERN-D075"),
        ((Message("system", "be brief"), Message("assistant", "hello")), "ERN-D075"),
        ((), "ERN-D075"),
        ((Message("user", "q"), Message("assistant", " ")), "ERN-D076"),
    ],
)
def test_rows_without_question_or_completion_are_refused(messages, code):
    with pytest.raises(RowError) as caught:
        PromptEncoder(TOKENIZER, 64, new_tokens=5).encode(Conversation(messages))
    assert caught.value.code == code


def test_new_tokens_must_fit_behind_the_prompt():
    question = conversation("x" * 30)
    (sample,) = PromptEncoder(TOKENIZER, 70, new_tokens=5).encode(question)
    with pytest.raises(RowError) as caught:
        PromptEncoder(TOKENIZER, 70, new_tokens=60).encode(question)
    assert caught.value.code == "ERN-D044"
    assert "max_new_tokens" in caught.value.fix
    assert len(sample) <= 70


def test_earlier_turns_make_room_for_the_completion():
    turns = (Message("user", "x" * 20), Message("assistant", "y" * 9), Message("user", "q"), Message("assistant", "a"))
    (sample,) = PromptEncoder(TOKENIZER, 40, new_tokens=10).encode(Conversation(turns))
    assert sample.truncated


def test_a_reference_completion_is_used_though_it_is_not_to_be_learned():
    batch = encoded([conversation("q", "right", learn=False)])
    (prompt,) = prompts_of(batch)
    assert TOKENIZER.decode(prompt.reference.tolist()) == "right"


def test_prompts_come_back_out_of_packed_rows():
    records = [conversation("a"), conversation("bcd", "no"), conversation("", "yes")]
    for per_row in (1, 2, 3):
        found = list(prompts_of(encoded(records, per_row=per_row)))
        assert [TOKENIZER.decode(p.ids.tolist()) for p in found] == [
            "User: a\nAssistant: ",
            "User: bcd\nAssistant: ",
            "User: \nAssistant: ",
        ]
        assert [TOKENIZER.decode(p.reference.tolist()) for p in found] == ["ok", "no", "yes"]
        assert all(p.rejected is None for p in found)


def test_pairs_come_back_with_both_completions():
    pair = Preference((Message("user", "q"),), (Message("assistant", "good"),), (Message("assistant", "bad"),))
    (prompt,) = prompts_of(encoded([pair], PairPromptEncoder(TOKENIZER, 64, new_tokens=5)))
    assert TOKENIZER.decode(prompt.ids.tolist()) == "User: q\nAssistant: "
    assert TOKENIZER.decode(prompt.reference.tolist()) == "good"
    assert TOKENIZER.decode(prompt.rejected.labels.tolist()) == "bad"


# ---- rollouts


def test_rollouts_are_what_the_model_says_with_the_probabilities_it_says():
    model, prompt = toy_model(), [1, 80, 81]
    (completion,) = roll_out(
        model, TOKENIZER, [prompt], sampling=Sampling(do_sample=True, temperature=0.7, seed=5), max_new_tokens=6
    )
    ids = paddle.to_tensor([prompt + completion.ids.tolist()])
    logits = model(ids).numpy()[0].astype(np.float64)[len(prompt) - 1 : -1] / 0.7
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(completion.log_probs, log_p[np.arange(len(completion.ids)), completion.ids], atol=1e-5)
    np.testing.assert_allclose(completion.entropies, -(np.exp(log_p) * log_p).sum(-1), atol=1e-5)


@pytest.mark.parametrize("batch_size", [0, 4, 8])
def test_copies_are_the_completions_of_prompts_that_are_given_so_often(batch_size):
    prompts, sampling = [[1, 80, 81], [1, 90], [1, 70, 71, 72]], Sampling(do_sample=True, seed=5)
    copied = roll_out(
        toy_model(), TOKENIZER, prompts, sampling=sampling, max_new_tokens=6, copies=4, batch_size=batch_size
    )
    repeated = roll_out(
        toy_model(), TOKENIZER, [p for p in prompts for _ in range(4)], sampling=sampling, max_new_tokens=6
    )
    assert [r.ids.tolist() for r in copied] == [r.ids.tolist() for r in repeated]
    assert len({tuple(r.ids.tolist()) for r in copied}) > 6


def test_attempts_read_completions_and_reference_in_the_same_way():
    ids, right = [*TOKENIZER.encode("<think>so</think>4"), 2], [*TOKENIZER.encode("4"), 2]
    rollouts = [Rollout(np.array(i), np.zeros(len(i)), np.zeros(len(i)), True) for i in (ids, right)]
    thought, plain = completions_of(TOKENIZER, TOKENIZER.encode("q"), rollouts, right)
    assert (thought.content, thought.reasoning, thought.reference) == ("4", "so", "4")
    assert (plain.content, plain.reasoning) == ("4", "")
    assert (thought.num_tokens, thought.finished) == (len(ids), True)


def test_completions_do_not_depend_on_packing_order_or_micro_batches():
    records = [conversation(f"q{i}") for i in range(4)]
    ways = [
        [encoded(records)],
        [encoded(records, per_row=2)],
        [encoded(records[::-1])],
        [encoded(records[:1]), encoded(records[1:])],
    ]
    found = []
    for given in ways:
        (batch,) = objective().prepare(given, step=1, seed=9)
        rows = {
            tuple(ids[ends > np.arange(len(ids))].tolist())
            for ids, ends in zip(batch.input_ids, batch.startend_row_indices[:, 0, :, 0], strict=True)
        }
        found.append(rows)
    assert len(found[0]) == 4
    assert found[1:] == found[:1] * 3


def test_another_seed_gives_other_completions():
    batch = encoded([conversation("q")])
    one, two = (objective().prepare([batch], step=1, seed=seed)[0].input_ids for seed in (1, 2))
    assert one.shape != two.shape or (one != two).any()


# ---- learning


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (9, 2), (64, 3)])
def test_micro_batches_of_learning_change_nothing(size, rows):
    given = [encoded([conversation(f"q{i}" * (i + 1)) for i in range(3)])]
    reference = objective()
    expected = learned(reference, reference.prepare(given, step=1, seed=9))
    made = objective(learn_batch_size=size)
    batches = made.prepare(given, step=1, seed=9)
    assert max(len(b.labels) for b in batches) == rows
    totals, loss, gradient = learned(made, batches)
    assert totals == expected[0]
    assert loss == pytest.approx(expected[1], abs=1e-6)
    np.testing.assert_allclose(gradient, expected[2], atol=1e-6)


@pytest.mark.parametrize("config", [{}, {"ratio": "sequence"}, {"normalization": "sequence"}, {"temperature": 0.7}])
def test_completions_that_share_a_prompt_train_as_in_separate_samples(monkeypatch, config):
    given = [encoded([conversation("q" * 9), conversation("rst")])]
    shared = objective(**config)
    expected = learned(shared, shared.prepare(given, step=1, seed=9))
    together = batches.samples_of
    monkeypatch.setattr(
        batches, "samples_of", lambda p, pieces, *o: [s for piece in pieces for s in together(p, [piece], *o)]
    )
    apart = objective(**config)
    (batch,) = apart.prepare(given, step=1, seed=9)
    totals, loss, gradient = learned(apart, [batch])
    assert len(batch.labels) == 8
    assert (totals["tokens"], totals["completions"]) == (expected[0]["tokens"], expected[0]["completions"])
    assert loss == pytest.approx(expected[1], abs=1e-6)
    np.testing.assert_allclose(gradient, expected[2], atol=1e-6)


@pytest.mark.parametrize(("prompt", "completion", "samples"), [(20, 10, 1), (600, 10, 1), (20, 300, 4), (2000, 300, 1)])
def test_long_completions_are_not_put_into_one_sample(prompt, completion, samples):
    ids = np.arange(prompt)
    rollout = Rollout(np.arange(completion), np.zeros(completion), np.zeros(completion), True)
    found = batches.samples_of(ids, [batches.sampled(ids, rollout, 1.0)] * 4, Origin("", 0))
    assert len(found) == samples
    assert sum(int((s.labels >= 0).sum()) for s in found) == 4 * completion


def test_groups_of_equal_completions_teach_nothing():
    made = objective(score=lambda completions: [0.5] * len(completions))
    batches = made.prepare([encoded([conversation("q")])], step=1, seed=9)
    assert not learned(made, batches)[2].any()
    assert made(batches[0], made.normalizers(batches[0])).metrics["zero_variance"] == (1.0, 1.0)


def test_dropped_groups_leave_the_denominators():
    def only_first(completions):
        return [by_bytes([c])[0] if "q0" in c.prompt else 0.5 for c in completions]

    given = [encoded([conversation("q0"), conversation("q1")])]
    keep, drop = (objective(score=only_first, zero_variance=how) for how in ("keep", "drop"))
    kept, dropped = (learned(m, m.prepare(given, step=1, seed=9)) for m in (keep, drop))
    assert (kept[0]["completions"], dropped[0]["completions"]) == (8, 4)
    np.testing.assert_allclose(
        dropped[2] * dropped[0]["tokens"], kept[2] * kept[0]["tokens"], atol=1e-5
    )  # the same sum, divided by less


def test_a_step_without_anything_to_learn_has_a_gradient_of_zero_and_no_loss():
    made = objective(score=lambda completions: [0.5] * len(completions), zero_variance="drop")
    (batch,) = made.prepare([encoded([conversation("q")])], step=1, seed=9)
    output = made(batch, made.normalizers(batch))
    output.loss.backward()
    assert output.metrics["loss"] == (0.0, 0.0)
    assert output.metrics["zero_variance"] == (1.0, 1.0)
    gradients = [p.grad for p in made.policy.parameters() if p.grad is not None]
    assert not any(bool(g.any()) for g in gradients)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_tokens_that_the_sampler_drew_from_another_distribution_are_left_out(ratio):
    """The gap between sampler and learner is injected: half of the tokens far off, the others a little."""
    plain, mixed = objective(ratio=ratio), objective(ratio=ratio, mismatch=(0.5, 5.0))
    (batch,) = plain.prepare([encoded([conversation("q")])], step=1, seed=9)
    fields = dict(batch.fields)
    same = replace(batch, fields={**fields, "sampled": fields["old"]})
    np.testing.assert_array_equal(learned(mixed, [same])[2], learned(plain, [same])[2])
    far = np.arange(fields["old"].size).reshape(fields["old"].shape) % 2 == 0
    gap = np.where(far, -3.0, 0.1) * (batch.labels >= 0)
    off = replace(batch, fields={**fields, "sampled": fields["old"] + gap})
    output = mixed(off, mixed.normalizers(off))
    count, tokens = output.metrics["mismatched"]
    assert float(count) == (far & (batch.labels >= 0)).sum() > 0
    assert tokens == (batch.labels >= 0).sum()
    assert np.abs(learned(mixed, [off])[2]).max() < np.abs(learned(plain, [off])[2]).max()
    with pytest.raises(ValueError, match="a bound from 0 to below 1"):
        objective(mismatch=(5.0, 0.5))


def test_truncated_completions_are_compared_with_but_not_learned():
    made, masked = objective(), objective(mask_truncated=True)
    given = [encoded([conversation("q")])]
    (batch,), (without,) = (m.prepare(given, step=1, seed=9) for m in (made, masked))
    ended = (batch.labels == TOKENIZER.eos_id).any(axis=1) | (batch.labels == 3).any(axis=1)
    assert made.normalizers(batch)["completions"] == 4
    assert masked.normalizers(without)["completions"] == ended.sum()
    assert masked(without, {"tokens": 1.0, "completions": 1.0, "seen": 9.0}).metrics["truncated"] == (
        4 - ended.sum(),
        4,
    )


def test_held_out_rows_are_answered_greedily():
    made = objective(score=lambda completions: [float(c.reference == "yes") for c in completions])
    batch = encoded([conversation("a", "yes"), conversation("b", "no")])
    output = made(batch, made.normalizers(batch))
    assert output.metrics["reward/toy"] == (1.0, 2.0)
    assert float(output.loss) == -0.5
    assert made(batch, made.normalizers(batch)).metrics["length"] == output.metrics["length"]


# ---- further updates from the same completions


def test_completions_are_kept_for_further_updates_and_carried_over_a_restart():
    given = [encoded([conversation("q"), conversation("r")])]
    made = objective(updates_per_rollout=2)
    assert made.repeats == 2
    first = made.prepare(given, step=1, seed=9)
    carried = made.carried()
    again = objective(updates_per_rollout=2)
    again.load_carried(carried)
    for one, two in zip(made.prepare(given, step=2, seed=10), again.prepare(given, step=2, seed=10), strict=True):
        assert one is first[0]
        np.testing.assert_array_equal(one.input_ids, two.input_ids)
        for name in one.fields:
            np.testing.assert_array_equal(one.fields[name], two.fields[name])
    assert made.carried() == {}  # used up: the next step makes new rollouts
    assert "reward" not in made(first[0], made.normalizers(first[0])).metrics  # told once
    assert made.prepare(given, step=3, seed=11)[0] is not first[0]


def test_each_process_finds_its_own_completions_in_a_checkpoint():
    given = {rank: [encoded([conversation(f"question of {rank}"), conversation("shared")])] for rank in range(2)}
    ranks = {rank: objective(updates_per_rollout=2) for rank in given}
    for rank, made in ranks.items():
        made.prepare(given[rank], step=1, seed=9)
    checkpoint = {name: value for made in ranks.values() for name, value in made.carried().items()}
    for rank, made in ranks.items():
        again = objective(updates_per_rollout=2)
        again.load_carried(checkpoint)
        assert again.carried().keys() == checkpoint.keys()  # until a step has taken its part
        for one, two in zip(made._batches, again.prepare(given[rank], step=2, seed=10), strict=True):
            np.testing.assert_array_equal(one.input_ids, two.input_ids)
    other = objective(updates_per_rollout=2)
    other.load_carried(checkpoint)
    with pytest.raises(CheckpointError, match="number of processes"):
        other.prepare([*given[0], *given[1]], step=2, seed=10)


def test_a_checkpoint_without_the_completions_is_refused():
    with pytest.raises(CheckpointError, match="completions"):
        objective(updates_per_rollout=2).prepare([encoded([conversation("q")])], step=2, seed=9)


def test_batches_survive_as_arrays():
    batches = objective(learn_batch_size=3).prepare([encoded([conversation("q"), conversation("rs")])], step=1, seed=9)
    back = from_arrays(to_arrays({"q": batches}))["q"]
    assert [b.num_tokens for b in back] == [b.num_tokens for b in batches]
    for one, two in zip(batches, back, strict=True):
        np.testing.assert_array_equal(one.startend_row_indices, two.startend_row_indices)
        assert one.fields.keys() == two.fields.keys()


# ---- pairs


@pytest.mark.parametrize(
    ("rewards", "usable", "sides"),
    [
        ([0.0, 1.0, 1.0, 0.5], [True] * 4, [REJECTED, CHOSEN, 0, 0]),
        ([1.0, 1.0, 1.0, 1.0], [True] * 4, [0, 0, 0, 0]),
        ([3.0, 2.0, 1.0, 0.0], [False, True, True, False], [0, CHOSEN, REJECTED, 0]),
        ([1.0, 0.0, 0.0, 0.0], [False] * 4, [0, 0, 0, 0]),
    ],
)
def test_best_and_worst_of_a_group(rewards, usable, sides):
    assert best_and_worst(np.array(rewards), np.array(usable)).tolist() == sides


@pytest.mark.parametrize("size", [2, 64])
def test_pairs_stay_in_one_micro_batch_and_start_at_ln_2(size):
    made = objective(UpoObjective, reference=toy_model(), learn_batch_size=size, pair_weight=1.0)
    batches = made.prepare([encoded([conversation(f"q{i}" * (i + 1)) for i in range(3)])], step=1, seed=9)
    total = 0.0
    for batch in batches:
        sides = completions_in(batch).side.tolist()
        assert sides.count(CHOSEN) == sides.count(REJECTED)
        output = made(batch, {"tokens": 1.0, "completions": 1.0, "seen": 1.0, "pairs": 1.0})
        if CHOSEN in sides:
            loss, n = output.metrics["pairs/loss"]
            assert float(loss) / n == pytest.approx(np.log(2), abs=1e-6)
            total += n
    assert total == 3


def test_upo_without_pairs_is_grpo():
    given = [encoded([conversation("q"), conversation("r")])]
    plain, both = objective(), objective(UpoObjective, pair_weight=0.0)
    expected, found = (learned(m, m.prepare(given, step=1, seed=9)) for m in (plain, both))
    assert found[1] == pytest.approx(expected[1], abs=1e-7)
    np.testing.assert_allclose(found[2], expected[2], atol=1e-6)


def test_given_pairs_are_no_part_of_the_policy_gradient():
    pair = Preference((Message("user", "q"),), (Message("assistant", "good"),), (Message("assistant", "bad"),))
    batch = encoded([pair], PairPromptEncoder(TOKENIZER, 64, new_tokens=5))
    made = objective(UpoObjective, reference=toy_model(), pairs="offline")
    batches = made.prepare([batch], step=1, seed=9)
    totals = [made.normalizers(b) for b in batches]
    assert sum(t["completions"] for t in totals) == 4
    assert sum(t["pairs"] for t in totals) == 1
