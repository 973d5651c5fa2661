"""A model bundle as exporters get it: toy model, its state adapter and the toy tokenizer."""

from __future__ import annotations

from erniecore.testing.toys.model import TOY_ARCHITECTURE, ToyStateAdapter
from erniecore.testing.toys.tokenizer import ToyTokenizer
from erniecore.types import ModelBundle


def toy_bundle(seed: int = 0) -> ModelBundle:
    """Weights depend on ``seed`` alone."""
    from erniecore.testing.toys.paddle_lm import toy_model

    return ModelBundle(
        model=toy_model(seed),
        architecture=TOY_ARCHITECTURE,
        adapter=ToyStateAdapter(TOY_ARCHITECTURE),
        tokenizer=ToyTokenizer(),
        generation={"eos_token_id": 2},
    )
