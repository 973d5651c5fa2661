"""Noise on embeddings: its size, what it depends on, and where there is none."""

from math import sqrt

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_sft.noise import noise_of, stretches
from erniecore_sft.objective import SftObjective

from erniecore.api import UsageError
from erniecore.api.data import Batch
from erniecore.api.method import Features, Sample
from erniecore.api.training import collate

WIDTH, VOCAB = 64, 97


def sample(*ids):
    ids, n = np.array(ids, np.int64), len(ids)
    return Sample(ids, ids, np.arange(n), np.full(n, n, np.int32))


A, B, C = sample(*range(5, 25)), sample(7, 7, 7), sample(*range(40, 90))


def noise(rows, key="1/0", alpha=5.0, **options):
    return noise_of(collate(rows, pad_id=0, **options), WIDTH, alpha, key)


def test_a_sample_has_its_noise_wherever_it_is():
    alone = {len(s): noise([[s]])[0] for s in (A, B, C)}
    packed = noise([[A, B], [C], []], length=80)
    np.testing.assert_array_equal(packed[0, :20], alone[20])
    np.testing.assert_array_equal(packed[0, 20:23], alone[3])
    np.testing.assert_array_equal(packed[1, :50], alone[50])
    assert not packed[0, 23:].any()
    assert not packed[1, 50:].any()
    assert not packed[2].any()
    batch = collate([[A, B], [C], []], pad_id=0, length=80)
    assert list(stretches(batch.startend_row_indices[:, 0, :, 0])) == [(0, 0, 20), (0, 20, 23), (1, 0, 50)]


def test_noise_is_uniform_and_as_large_as_the_formula_says():
    found = noise([[C]], alpha=15.0)[0]
    bound = 15.0 / sqrt(50 * WIDTH)
    assert bound * (1 - 1e-3) < np.abs(found).max() <= bound
    assert found.std() == pytest.approx(bound / sqrt(3), rel=0.02)
    assert abs(found.mean()) < 3 * bound / sqrt(3) / sqrt(found.size)
    np.testing.assert_allclose(noise([[C]], alpha=3.0)[0], found / 5, rtol=1e-6)


def test_noise_by_hand():
    """Philox with the first 16 bytes of BLAKE2b over step and tokens; 16-bit numbers to the middles of equal parts."""
    import hashlib

    tokens = hashlib.blake2b(B.input_ids.tobytes(), digest_size=16).hexdigest()
    key = int.from_bytes(hashlib.blake2b(f"1/0/{tokens}".encode(), digest_size=16).digest(), "little")
    raw = np.random.Philox(counter=0, key=key).random_raw(3 * WIDTH // 4).view("<u2").astype(np.float64)
    expected = (2 * (raw + 0.5) / 65536 - 1) * 5.0 / sqrt(3 * WIDTH)
    np.testing.assert_allclose(noise([[B]])[0].reshape(-1), expected, rtol=1e-6)


def test_steps_calls_and_samples_have_noise_of_their_own():
    found = [noise([[B]]), noise([[B]], key="2/0"), noise([[B]], key="1/1"), noise([[sample(7, 7, 8)]])]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 0.3
            assert (one == other).mean() < 0.01


class Model(paddle.nn.Layer):
    """An embedding, and the same vectors as the head."""

    def __init__(self, name="embed_tokens"):
        super().__init__()
        paddle.seed(1)
        self.add_sublayer(name, paddle.nn.Embedding(VOCAB, WIDTH))
        self.name, self.architecture, self.hidden = name, {}, None

    def features(self, input_ids, **masks):
        self.hidden = self._sub_layers[self.name](input_ids)
        return Features(self.hidden)

    def head(self):
        return self._sub_layers[self.name].weight, True, None


def trained(model, batch: Batch, seed=3, alpha=5.0, **options):
    objective = SftObjective(model, neftune_alpha=alpha, **options)
    objective.prepare([batch], step=1, seed=seed)
    objective(batch, objective.normalizers(batch))
    return model.hidden.numpy()


def test_the_model_gets_the_noise_in_training_alone():
    batch, model = collate([[A, B], [C]], pad_id=0), Model()
    plain = trained(model, batch, alpha=0.0)
    np.testing.assert_allclose(trained(model, batch) - plain, noise([[A, B], [C]], key="3/0"), atol=1e-6)
    model.eval()
    np.testing.assert_array_equal(trained(model, batch), plain)
    model.train()
    np.testing.assert_array_equal(model._sub_layers["embed_tokens"](paddle.to_tensor(batch.input_ids)).numpy(), plain)


def test_a_model_whose_embedding_is_not_found_is_refused():
    with pytest.raises(UsageError, match="cannot get noise") as caught:
        trained(Model("wte"), collate([[A]], pad_id=0))
    assert "method.neftune_alpha" in str(caught.value.where)
