"""A model bundle as exporters get it: toy model, its state adapter and the toy tokenizer."""

from __future__ import annotations

from erniecore.api.model import ModelBundle
from erniecore_conformance.toys.model import TOY_ARCHITECTURE, ToyStateAdapter
from erniecore_conformance.toys.tokenizer import ToyTokenizer


def toy_bundle(seed: int = 0) -> ModelBundle:
    """Weights depend on ``seed`` alone."""
    from erniecore_conformance.toys.paddle_lm import toy_model

    return ModelBundle(
        model=toy_model(seed),
        architecture=TOY_ARCHITECTURE,
        adapter=ToyStateAdapter(TOY_ARCHITECTURE),
        tokenizer=ToyTokenizer(),
        generation={"eos_token_id": 2},
    )


def installed_bundle(seed: int = 0) -> ModelBundle:
    """A tiny model of the first installed model plugin that has a recipe ``tiny``, without a tokenizer.

    Raises ``NotApplicable`` when there is none.
    """
    import paddle

    from erniecore.api.testing import entries
    from erniecore_conformance.exercise import architecture_of
    from erniecore_conformance.expect import NotApplicable
    from erniecore_conformance.subjects import Subject

    for entry in entries("model"):
        subject = Subject.installed("model", entry.name)
        try:
            config, architecture = architecture_of(subject)
        except NotApplicable:
            continue
        paddle.seed(seed)
        model = subject.call("ernie_build_model", config=config, architecture=architecture, dtype="float32")
        adapter = subject.call("ernie_state_adapter", architecture=architecture)
        return ModelBundle(model=model, architecture=architecture, adapter=adapter, tokenizer=None)
    raise NotApplicable("no installed model plugin has a recipe `tiny`")
