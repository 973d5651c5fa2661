"""What the tests of adapters ask of a model and of one layer."""

import numpy as np
import paddle  # noqa: TID253

#: of the models in tests/fixtures that the fixture `model` makes
NAMES = ("dense", "moe")
IDS = np.random.default_rng(0).integers(5, 440, (2, 19))


def logits(model, ids=IDS):
    """Of a model that is not trained meanwhile: [rows, positions, words], float32."""
    model.eval()
    with paddle.no_grad():
        return model(paddle.to_tensor(ids)).numpy()


def linear(inputs, outputs):
    """A linear layer in float64, whose bias is not zero."""
    before = paddle.get_default_dtype()
    paddle.set_default_dtype("float64")
    try:
        layer = paddle.nn.Linear(inputs, outputs)
    finally:
        paddle.set_default_dtype(before)
    layer.bias.set_value(np.arange(1.0, outputs + 1))
    return layer
