"""The adversarial loss by hand in float64, what has a label, and sentences."""

import math

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_adversarial.encoder import GENERATED, NATURAL, AdversarialEncoder
from erniecore_adversarial.generate_command import beginning
from erniecore_adversarial.losses import adversarial_losses, log_natural
from erniecore_adversarial.objective import AdversarialObjective
from erniecore_adversarial.rows import GeneratedDocument
from erniecore_adversarial.sentences import finished, sentences
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer

from erniecore.api import RowError
from erniecore.api.building import add_score_head
from erniecore.api.data import Document
from erniecore.api.method import IGNORE

END = 2


class Letters:
    """a -> 3, b -> 4, …"""

    eos_id = END

    def encode(self, text):
        return [ord(c) - ord("a") + 3 for c in text]


def test_golden_values():
    scores = paddle.to_tensor([0.0, 2.0, -1.0], dtype="float64")
    natural = paddle.to_tensor([1.0, 0.0, 1.0], dtype="float64")
    expected = [math.log(2), math.log(1 + math.exp(2)), math.log(1 + math.exp(1))]
    np.testing.assert_allclose(adversarial_losses(scores, natural).numpy(), expected, rtol=1e-15)
    np.testing.assert_allclose(log_natural(scores).numpy(), [-math.log1p(math.exp(-s)) for s in (0, 2, -1)], rtol=1e-15)


def test_its_gradient_is_the_error_of_the_probability():
    scores = paddle.to_tensor([0.3, -2.0, 900.0, -900.0], dtype="float64", stop_gradient=False)
    natural = paddle.to_tensor([1.0, 0.0, 0.0, 1.0], dtype="float64")
    losses = adversarial_losses(scores, natural)
    losses.sum().backward()
    probability = [1 / (1 + math.exp(-0.3)), 1 / (1 + math.exp(2.0)), 1.0, 0.0]
    np.testing.assert_allclose(scores.grad.numpy(), np.array(probability) - natural.numpy(), atol=1e-15)
    assert losses.numpy()[2:].tolist() == [900.0, 900.0]


def test_pieces_are_judged_at_a_marker():
    natural = AdversarialEncoder(Letters(), 4).encode(Document("abcde"))
    assert [s.input_ids.tolist() for s in natural] == [[3, 4, 5, END], [6, 7, END]]
    assert [s.labels.tolist() for s in natural] == [[4, 5, 6, END], [7, END, END]]
    assert [s.fields["judged"].tolist() for s in natural] == [[0, 0, 0, NATURAL], [0, 0, NATURAL]]
    [generated] = AdversarialEncoder(Letters(), 9).encode(GeneratedDocument("abcde"))
    assert generated.labels.tolist() == [IGNORE] * 5 + [END]
    assert generated.fields["judged"].tolist() == [0] * 5 + [GENERATED]
    with pytest.raises(RowError, match="no text"):
        AdversarialEncoder(Letters(), 9).encode(Document(" \n"))


@pytest.fixture(scope="module")
def parts():
    """A toy model with a head, and samples of two natural and two generated texts."""
    policy = toy_model()
    paddle.seed(0)
    add_score_head(policy)
    encoder = AdversarialEncoder(ToyTokenizer(), 64)
    texts = [("1 ant 1 ant", False), ("2 bee", True), ("3 cat 3", False), ("4 dog dog dog dog", True)]
    return policy, [encoder.encode((GeneratedDocument if made else Document)(text))[0] for text, made in texts]


def run(policy, samples, **settings):
    objective = AdversarialObjective(policy, **settings)
    batch = collate([[sample] for sample in samples])
    return objective(batch, objective.normalizers(batch))


def test_both_terms_by_hand(parts):
    policy, samples = parts
    output = run(policy, samples, weight=0.5, lm_weight=2.0)
    lm, adversarial = [], []
    for sample in samples:
        hidden = policy.features(paddle.to_tensor(sample.input_ids[None])).hidden
        logits = policy.logits(hidden)[0].numpy().astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        made = sample.fields["judged"][-1] == GENERATED
        if not made:
            lm += [-log_p[i, label] for i, label in enumerate(sample.labels[:-1])]
        score = float(hidden[0, -1].numpy().astype(np.float64) @ policy.score.weight.numpy().astype(np.float64)[:, 0])
        adversarial.append(math.log1p(math.exp(score if made else -score)))
    assert float(output.loss) == pytest.approx(2.0 * np.mean(lm) + 0.5 * np.mean(adversarial), rel=1e-6)
    assert {name: weight for name, (_, weight) in output.metrics.items()} == {
        "loss": 4, "lm_loss": len(lm), "adversarial_loss": 4, "accuracy": 4, "accuracy/natural": 2, "accuracy/generated": 2,
    }  # fmt: skip


def test_generated_text_teaches_no_next_token(parts):
    policy, samples = parts
    output = run(policy, samples[1::2])
    assert float(output.loss) == pytest.approx(float(output.metrics["adversarial_loss"][0]) / 2, rel=1e-6)
    assert output.metrics["lm_loss"][1] == 0


@pytest.mark.parametrize("rows", [[[0], [1], [2], [3]], [[0, 1, 2, 3]], [[3, 0], [2, 1]]])
def test_padding_and_packing_cost_nothing(parts, rows):
    policy, samples = parts
    expected = run(policy, samples)
    objective = AdversarialObjective(policy)
    batch = collate([[samples[i] for i in row] for row in rows], padding=9)
    found = objective(batch, objective.normalizers(batch))
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-5)
    for name, (total, weight) in expected.metrics.items():
        assert found.metrics[name][1] == weight
        assert float(found.metrics[name][0]) == pytest.approx(float(total), rel=1e-5)


def test_sentences():
    text = 'One. "Two!" Three? 四。五\nsix'
    assert sentences(text) == ["One.", ' "Two!"', " Three?", " 四。"]
    assert finished(text) == 'One. "Two!" Three? 四。'
    assert finished("no end") == ""
    assert beginning(text, 2) == 'One. "Two!"'
    assert beginning("One. Two.", 3) == "One."  # something is left to be written
    assert beginning("One.", 3) == ""
    assert beginning("One. rest", 3) == "One."
