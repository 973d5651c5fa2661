"""Checks for adapters, over the toy model. A plugin with the capability ``merge`` returns layers that have ``merge()``
and ``unmerge()``."""

from __future__ import annotations

from typing import Any

from erniecore.api.adapter import AdapterCapability
from erniecore_conformance.check import Check
from erniecore_conformance.expect import ensure, ensure_bits, ensure_close
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.compute import (
    clear_gradients,
    gradients,
    logits,
    missing_gradients,
    next_token_loss,
    random_ids,
    sgd_steps,
    weights,
)

_VOCAB = 260


def _adapted(subject: Subject, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """The adapted toy model, and the toy model's own parameters by name, as they were before."""
    import paddle

    from erniecore_conformance.toys.paddle_lm import toy_model

    model = toy_model()
    own = dict(model.named_parameters())
    paddle.seed(seed)
    return subject.call("ernie_adapt_model", config=subject.config(), model=model), own


def _trained(subject: Subject, steps: int = 3) -> Any:
    model, _ = _adapted(subject)
    sgd_steps(model, random_ids(2, 12, _VOCAB), steps=steps, learning_rate=0.5)
    return model


def check_adapter_starts_as_identity(subject: Subject) -> None:
    """Before training the adapted model has the logits of the base model (<= 1e-6)."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    ids = random_ids(2, 9, _VOCAB)
    ensure_close(logits(_adapted(subject)[0], ids), logits(toy_model(), ids), 1e-6, "logits before training")


def check_adapter_keeps_the_interface(subject: Subject) -> None:
    """The adapted model is still a ``CausalLM``: its five members are there, and calling it gives logits."""
    import paddle

    model, _ = _adapted(subject)
    missing = [m for m in ("architecture", "features", "logits", "head", "after_step") if not hasattr(model, m)]
    ensure(not missing, f"the adapted model has no {', '.join(missing)}")
    ids = random_ids(1, 5, _VOCAB)
    model.eval()
    ensure_close(model(paddle.to_tensor(ids)).numpy(), logits(model, ids), 1e-6, "model(ids)")


def check_adapter_freezes_the_base(subject: Subject) -> None:
    """No parameter of the base model is trainable, and something else is."""
    model, own = _adapted(subject)
    kept = {id(p) for p in own.values()}
    open_base = [n for n, p in own.items() if not p.stop_gradient]
    ensure(not open_base, f"parameters of the base are trainable: {', '.join(open_base[:5])}")
    added = [n for n, p in model.named_parameters() if id(p) not in kept and not p.stop_gradient]
    ensure(bool(added), "no parameter is trainable")


def check_adapter_training_leaves_the_base(subject: Subject) -> None:
    """Three steps change no bit of the base model's parameters."""
    model, own = _adapted(subject)
    before = {n: p.numpy().copy() for n, p in own.items()}
    sgd_steps(model, random_ids(2, 12, _VOCAB), steps=3, learning_rate=0.5)
    for name, p in own.items():
        ensure_bits(p.numpy(), before[name], f"{name} of the base after training")


def check_adapter_is_small(subject: Subject) -> None:
    """The adapter has fewer trainable values than the base model has values."""
    model, own = _adapted(subject)
    kept, base = {id(p) for p in own.values()}, sum(int(p.size) for p in own.values())
    added = sum(int(p.size) for p in model.parameters() if id(p) not in kept and not p.stop_gradient)
    ensure(added < base, f"{added} trainable values on a base of {base}")


def check_adapter_gradients_reach_everything(subject: Subject) -> None:
    """After two steps every adapter parameter has got a finite gradient that is not all zero."""
    model, _ = _adapted(subject)
    ids, starved = random_ids(2, 12, _VOCAB), set()
    for step in range(3):
        next_token_loss(model, ids).backward()
        found = gradients(model)
        starved = {n for n in missing_gradients(found) if step == 0 or n in starved}
        clear_gradients(model)
        sgd_steps(model, ids, steps=1, learning_rate=0.5)
    ensure(not starved, f"gradients: {', '.join(sorted(starved)[:5])}")


def check_adapter_learns(subject: Subject) -> None:
    """Thirty steps of gradient descent lower the loss."""
    model, _ = _adapted(subject)
    losses = sgd_steps(model, random_ids(2, 12, _VOCAB), steps=30, learning_rate=0.2)
    ensure(losses[-1] < losses[0] - 0.01, f"loss {losses[0]:.5g} at the start, {losses[-1]:.5g} after 30 steps")


def check_adapter_seed_decides_weights(subject: Subject) -> None:
    """The same seed gives the same adapter, bit for bit."""
    first, again = (weights(_adapted(subject, seed=5)[0]) for _ in range(2))
    for name, value in first.items():
        ensure_bits(again[name], value, f"{name} built again")


def check_adapter_merges(subject: Subject) -> None:
    """``merge()`` leaves the logits of a trained adapter (<= 1e-5); merging twice is merging once."""
    model, ids = _trained(subject), random_ids(2, 9, _VOCAB)
    before = logits(model, ids)
    model.merge()
    merged = logits(model, ids)
    ensure_close(merged, before, 1e-5, "logits after merge()")
    model.merge()
    ensure_bits(logits(model, ids), merged, "logits after merge() again")


def check_adapter_unmerges(subject: Subject) -> None:
    """``unmerge()`` restores every weight, bit for bit."""
    model = _trained(subject)
    before = weights(model)
    model.merge()
    model.unmerge()
    after = weights(model)
    for name, value in before.items():
        ensure_bits(after[name], value, f"{name} after merge() and unmerge()")


CHECKS = (
    Check(check_adapter_starts_as_identity),
    Check(check_adapter_keeps_the_interface),
    Check(check_adapter_freezes_the_base),
    Check(check_adapter_training_leaves_the_base),
    Check(check_adapter_is_small),
    Check(check_adapter_gradients_reach_everything),
    Check(check_adapter_learns),
    Check(check_adapter_seed_decides_weights),
    Check(check_adapter_merges, needs=AdapterCapability.MERGE),
    Check(check_adapter_unmerges, needs=AdapterCapability.MERGE),
)
