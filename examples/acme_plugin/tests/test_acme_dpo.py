"""The loss by hand, however the pairs are packed; the accelerator that is not there."""

from types import SimpleNamespace

import numpy as np
import pytest

from erniecore.api import DeviceUnavailable
from erniecore.api.device import Cluster
from erniecore.api.method import IGNORE
from erniecore_acme.npu import plugin as npu


@pytest.mark.parametrize("margin", [0.0, 0.7])
def test_a_policy_that_is_its_reference(toy_policy, toy_tokenizer, toy_batch, margin):
    from erniecore_acme.dpo.encoder import AcmeDpoEncoder
    from erniecore_acme.dpo.objective import AcmeDpoObjective

    batch = toy_batch(AcmeDpoEncoder(toy_tokenizer, 64))
    objective = AcmeDpoObjective(toy_policy, toy_policy, margin=margin)
    found = float(objective(batch, objective.normalizers(batch)).loss)
    assert found == pytest.approx(np.log1p(np.exp(margin)), rel=1e-5)


def test_completions_of_packed_pairs():
    from erniecore_acme.dpo.objective import completions_of

    labels = np.array([[IGNORE, 5, 6, IGNORE, 7, IGNORE, 8, 9, IGNORE, 4]])
    sides = np.array([[1, 1, 1, 2, 2, 1, 1, 1, 2, 2]])
    where, owner = completions_of(SimpleNamespace(labels=labels, fields={"completion": sides}))
    assert where.tolist() == [1, 2, 4, 6, 7, 9]
    assert owner.tolist() == [0, 0, 1, 2, 2, 3]


def test_the_accelerator_is_refused_with_its_install_line():
    device = npu.ernie_open_device(config=npu.Config(), cluster=Cluster())
    with pytest.raises(DeviceUnavailable, match="paddle-acme") as caught:
        device.open()
    assert "wheels.acme.example" in caught.value.fix
