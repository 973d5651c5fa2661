"""Small numeric helpers of the checks: forward passes and training steps on toy models. paddle inside functions.

Letters: B batch, S sequence, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from erniecore.api.testing import Layer, Tensor

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]


def random_ids(B: int, S: int, vocab: int, seed: int = 0) -> Ints:
    """int64 [B, S], without the first four ids (special tokens)."""
    import numpy as np

    return np.random.default_rng(seed).integers(min(4, vocab - 1), vocab, (B, S)).astype(np.int64)


@contextmanager
def evaluating(model: Layer) -> Iterator[None]:
    """Evaluation mode, no gradients; the training flag is restored."""
    import paddle

    training = model.training
    model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        model.train() if training else model.eval()


def logits(model: Layer, ids: Ints, **options: Any) -> Floats:
    """float32 [B, S, V] in evaluation mode; numpy options become tensors."""
    import paddle

    tensors = {k: paddle.to_tensor(v) if hasattr(v, "dtype") else v for k, v in options.items()}
    with evaluating(model):
        features = model.features(paddle.to_tensor(ids), **tensors)
        found: Floats = model.logits(features.hidden).numpy()
    return found


def next_token_loss(model: Layer, ids: Ints, inputs: Mapping[str, Any] | None = None) -> Tensor:
    """Mean cross-entropy of the next token, with everything else that the features add for their gradient. ``inputs``:
    further arrays for the model by name."""
    import paddle
    from paddle.nn import functional as F

    tensors = {name: paddle.to_tensor(array) for name, array in (inputs or {}).items()}
    features = model.features(paddle.to_tensor(ids), **tensors)
    targets = paddle.to_tensor(ids[:, 1:])
    loss = F.cross_entropy(model.logits(features.hidden[:, :-1]), targets)
    for depth, ahead in enumerate(features.mtp_hidden):
        loss = loss + F.cross_entropy(model.logits(ahead[:, : -2 - depth]), targets[:, depth + 1 :])
    for extra in features.auxiliary.values():
        loss = loss + extra
    return loss


def gradients(model: Layer) -> dict[str, Floats | None]:
    """Gradient of every trainable parameter by name, as float32; ``None`` where there is none."""
    found = {}
    for name, parameter in model.named_parameters():
        if not parameter.stop_gradient:
            found[name] = None if parameter.grad is None else parameter.grad.astype("float32").numpy().copy()
    return found


def clear_gradients(model: Layer) -> None:
    """Set all gradients to None."""
    for parameter in model.parameters():
        parameter.clear_gradient(False)


def weights(model: Layer) -> dict[str, Any]:
    """A copy of every parameter and buffer, bits as they are."""
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def sgd_steps(model: Layer, ids: Ints, *, steps: int, learning_rate: float) -> list[float]:
    """Plain gradient descent on :func:`next_token_loss`; the losses."""
    import paddle

    trainable = [p for p in model.parameters() if not p.stop_gradient]
    losses = []
    model.train()
    for _ in range(steps):
        loss = next_token_loss(model, ids)
        loss.backward()
        losses.append(float(loss))
        with paddle.no_grad():
            for p in trainable:
                if p.grad is not None:
                    p.set_value(p - learning_rate * p.grad)
        clear_gradients(model)
    return losses


def sqnr(signal: Floats, noisy: Floats) -> float:
    """Signal to quantization noise in dB: 10 log10(|signal|^2 / |signal - noisy|^2)."""
    import numpy as np

    noise = float(np.square(np.asarray(signal, np.float64) - noisy).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(np.square(np.asarray(signal, np.float64)).sum() / noise))


def missing_gradients(found: Mapping[str, Floats | None]) -> list[str]:
    """Names whose gradient is absent, zero or not finite, with what is wrong."""
    import numpy as np

    out = []
    for name, value in found.items():
        if value is None:
            out.append(f"{name} (none)")
        elif not np.isfinite(value).all():
            out.append(f"{name} (not finite)")
        elif not np.any(value):
            out.append(f"{name} (zero)")
    return out
