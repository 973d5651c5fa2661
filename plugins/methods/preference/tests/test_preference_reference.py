"""What completions are compared with: values that were computed once, a reference that follows, an adapter that is off."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_lora.build import adapt
from erniecore_lora.config import LoraConfig, Variant
from erniecore_preference.config import DpoConfig, KtoConfig
from erniecore_preference.encoder import PairEncoder
from erniecore_preference.grouping import completions_of
from erniecore_preference.losses import LOSSES
from erniecore_preference.objective import PairObjective
from erniecore_preference.plugin import dpo, kto
from erniecore_preference.scoring import without_gradient
from erniecore_preference.table import sample_keys

from erniecore.api import CheckpointError, ConfigError
from erniecore.api.data import Message, Preference
from erniecore.engine.models.reference_model import AdapterOff, make_reference

ENCODER = PairEncoder(ToyTokenizer(), 100)


def samples(count=6, first=0):
    made = []
    for i in range(first, first + count):
        completions = [(Message("assistant", "ab" * (1 + i)),), (Message("assistant", "c" * (1 + i)),)]
        made += ENCODER.encode(Preference((Message("user", "Q" * (1 + i)),), *completions))
    return made


def looked_up(policy, **settings):
    return PairObjective(LOSSES["dpo"], DpoConfig(reference="precomputed", **settings), policy)


def live(policy, reference, **settings):
    return PairObjective(LOSSES["dpo"], DpoConfig(**settings), policy, reference)


def one(sample):
    return collate([[sample]])


def shift(model, by=0.05):
    with paddle.no_grad():
        for p in model.parameters():
            if not p.stop_gradient:
                p.set_value(p + by)


# ---- values that were computed once


def test_values_of_the_table_are_those_of_a_frozen_copy(tmp_path):
    policy = toy_model(0)
    frozen = make_reference(policy, "copy", adapted=False)
    objective = looked_up(policy)
    objective.begin(map(one, samples()), step=0, out=tmp_path)
    shift(policy)
    for batch in (collate([samples()[:3], samples()[3:]], padding=2), collate([[s] for s in reversed(samples())])):
        completions = completions_of(batch)
        expected = without_gradient(frozen, batch, completions, 1024).numpy()
        np.testing.assert_allclose(objective.referred(batch, completions).numpy(), expected, rtol=1e-6)
        totals = objective.normalizers(batch)
        assert float(objective(batch, totals).loss) == pytest.approx(
            float(live(policy, frozen)(batch, totals).loss), abs=1e-6
        )


def test_a_later_run_from_the_same_weights_computes_only_what_is_new(tmp_path):
    facts = [
        looked_up(toy_model(seed), reference_cache=str(tmp_path / "cache")).begin(
            map(one, samples(count)), step=0, out=tmp_path
        )
        for seed, count in ((0, 4), (0, 6), (1, 4))
    ]
    assert [(f["samples"], f["computed"], f["reused"]) for f in facts] == [(4, 4, 0), (6, 2, 4), (4, 4, 0)]
    assert facts[0]["path"] == facts[1]["path"] != facts[2]["path"]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_values_are_stored_while_they_are_computed(tmp_path, monkeypatch):
    monkeypatch.setattr("erniecore_preference.reference.SAVE_EVERY", 2)

    def interrupted():
        yield from map(one, samples(5))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        looked_up(toy_model()).begin(interrupted(), step=0, out=tmp_path)
    facts = looked_up(toy_model()).begin(map(one, samples(5)), step=0, out=tmp_path)
    assert (facts["computed"], facts["reused"]) == (1, 4)


def test_a_changed_file_is_refused(tmp_path):
    facts = looked_up(toy_model()).begin(map(one, samples()), step=0, out=tmp_path)
    with open(facts["path"], "r+b") as file:
        file.seek(-3, 2)
        file.write(b"\x07")
    with pytest.raises(CheckpointError):
        looked_up(toy_model()).begin(map(one, samples()), step=0, out=tmp_path)


def test_a_sample_that_was_not_there_is_refused(tmp_path):
    objective = looked_up(toy_model())
    objective.begin(map(one, samples(3)), step=0, out=tmp_path)
    batch = collate([[s] for s in samples(5)])
    with pytest.raises(CheckpointError, match="not known") as caught:
        objective(batch, objective.normalizers(batch))
    assert "2 of 5" in str(caught.value)


def test_samples_with_the_same_tokens_but_other_labels_are_different():
    (sample,) = samples(1)
    other = copy.deepcopy(sample)
    other.labels[np.flatnonzero(other.labels >= 0)[0]] = -100
    keys = [sample_keys(b, completions_of(b)) for b in (one(sample), one(other))]
    assert keys[0] != keys[1]


def test_a_continued_run_takes_the_values_from_its_checkpoint(tmp_path):
    objective, again = looked_up(toy_model()), looked_up(toy_model(5))
    objective.begin(map(one, samples()), step=0, out=tmp_path)
    again.load_carried(objective.carried())
    assert again.begin(iter(()), step=3, out=tmp_path) == {}
    batch = collate([[s] for s in samples()])
    completions = completions_of(batch)
    assert (again.referred(batch, completions).numpy() == objective.referred(batch, completions).numpy()).all()


def test_trained_weights_are_no_reference(tmp_path):
    with pytest.raises(CheckpointError, match="not the initial ones"):
        looked_up(toy_model()).begin(map(one, samples()), step=3, out=tmp_path)


# ---- a reference that follows


def test_the_reference_becomes_the_policy_every_so_many_steps():
    policy = toy_model(0)
    objective = live(policy, make_reference(policy, "copy", adapted=False), reference_update_steps=2)
    batch = collate([[s] for s in samples()])
    margins = []
    for step in (1, 2, 3):
        shift(policy, 0.02 * step)
        objective.after_step(step=step, rate=1e-3)
        margins.append(float(objective(batch, objective.normalizers(batch)).metrics["rewards/margins"][0]))
    assert margins[0] != 0
    assert margins[1] == pytest.approx(0, abs=1e-9)
    assert margins[2] != 0


def test_a_reference_that_stays_is_no_state_of_the_run():
    policy = toy_model(0)
    objective = live(policy, make_reference(policy, "copy", adapted=False))
    shift(policy)
    objective.after_step(step=1, rate=1e-3)
    assert objective.state_tensors() == {}


def test_a_moved_reference_is_restored_bit_for_bit():
    policy = toy_model(0)
    objective = live(policy, make_reference(policy, "copy", adapted=False), reference_update_steps=1)
    shift(policy)
    objective.after_step(step=1, rate=1e-3)
    stored = {name: t.numpy().copy() for name, t in objective.state_tensors().items()}
    assert stored.keys() == policy.state_dict().keys()
    again = live(policy, make_reference(toy_model(0), "copy", adapted=False), reference_update_steps=1)
    again.load_state_arrays(stored)
    assert all((t.numpy() == stored[name]).all() for name, t in again.state_tensors().items())


def adapted():
    return adapt(toy_model(0), LoraConfig(rank=2, targets=("q_proj",)), Variant())


def test_under_an_adapter_only_the_adapter_moves():
    policy = adapted()
    reference = make_reference(policy, "copy", adapted=True)
    objective = live(policy, reference, reference_update_steps=1)
    assert objective.state_tensors().keys() == {n for n, p in policy.named_parameters() if not p.stop_gradient}
    shift(policy)
    objective.after_step(step=1, rate=1e-3)
    batch = collate([[s] for s in samples()])
    assert float(objective(batch, objective.normalizers(batch)).loss) == pytest.approx(np.log(2), abs=1e-6)


# ---- an adapter that is off


def test_the_base_under_an_adapter_is_the_reference_without_a_copy():
    policy = adapted()
    reference = make_reference(policy, "base", adapted=True)
    assert isinstance(reference, AdapterOff)
    assert reference.parameters() == []
    shift(policy, 0.3)
    policy.train()
    batch = collate([[s] for s in samples()])
    completions = completions_of(batch)
    found = without_gradient(reference, batch, completions, 1024).numpy()
    np.testing.assert_array_equal(found, without_gradient(toy_model(0), batch, completions, 1024).numpy())
    assert policy.training
    assert np.abs(found - without_gradient(policy, batch, completions, 1024).numpy()).max() > 1e-3


# ---- settings that contradict each other


class Settings:
    def __init__(self, method):
        self.method, self.model = method, SimpleNamespace(augments=list)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (DpoConfig(reference="precomputed", reference_update_steps=2), "method.reference_update_steps"),
        (DpoConfig(reference_free=True, reference_update_steps=2), "method.reference_update_steps"),
        (DpoConfig(reference="precomputed", reference_free=True), "method.reference"),
        (DpoConfig(reference_cache="x"), "method.reference_cache"),
        (KtoConfig(reference="precomputed"), "method.kl"),
    ],
)
def test_contradictions_are_refused(section, key):
    plugin = kto if isinstance(section, KtoConfig) else dpo
    with pytest.raises(ConfigError) as caught:
        plugin.ernie_check_settings(settings=Settings(section))
    assert caught.value.problems[0].key == key


def test_kto_without_reference_point_may_be_precomputed():
    kto.ernie_check_settings(settings=Settings(KtoConfig(reference="precomputed", kl="none")))


# ---- stages of a pipeline without the head, which find zeros


def test_what_is_found_without_a_head_enters_no_sum():
    objective = live(toy_model(0), None)
    objective.counts, objective.all_gather_object = False, lambda value: [value, [3.0, 1.0]]
    assert objective.summed([0.0, 2.0]) == [3.0, 1.0]


def test_values_are_those_of_the_one_rank_with_the_head_which_keeps_the_file(tmp_path):
    barrier, told = threading.Barrier(2), {}
    ranks = [looked_up(toy_model(seed)) for seed in (0, 1)]
    expected = without_gradient(ranks[1].policy, batch := one(samples(1)[0]), completions_of(batch), 1024).numpy()

    def begin(index):
        def all_gather_object(value):
            told[index] = value
            barrier.wait()
            found = [told[0], told[1]]
            barrier.wait()
            return found

        try:
            ranks[index].counts, ranks[index].all_gather_object = index == 1, all_gather_object
            ranks[index].begin(map(one, samples(1)), step=0, out=tmp_path / str(index))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(begin, range(2)))
    assert [rank.table.values.tolist() for rank in ranks] == [[expected.tolist()]] * 2
    assert [len(list((tmp_path / str(i)).rglob("*.safetensors"))) for i in range(2)] == [0, 1]
