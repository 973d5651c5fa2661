"""A model bundle as exporters get it: toy model, its state adapter and the toy tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from erniecore.api import ErnieError
from erniecore.api.export import ExporterCapability
from erniecore.api.model import ModelBundle
from erniecore.api.testing import entries
from erniecore_conformance.expect import NotApplicable
from erniecore_conformance.subjects import Subject
from erniecore_conformance.toys.architecture import TOY_ARCHITECTURE
from erniecore_conformance.toys.model import ToyStateAdapter
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


def bundle_for(exporter: Subject, seed: int = 0) -> ModelBundle:
    """What ``exporter`` is given: the toy model, or a tiny model of the first installed plugin whose models it takes.

    Raises ``NotApplicable`` when there is none, and what the exporter raises when it refuses all there are.
    """
    if ExporterCapability.INSTALLED_MODEL not in exporter.plugin.capabilities:
        return toy_bundle(seed)
    if exporter.plugin not in _TAKEN:
        _TAKEN[exporter.plugin] = _taken(exporter)
    return _tiny(_TAKEN[exporter.plugin], seed)


#: exporter -> the model plugin whose models it takes
_TAKEN: dict[Any, str] = {}


def _taken(exporter: Subject) -> str:
    refused: ErnieError | None = None
    for entry in entries("model"):
        try:
            bundle = _tiny(entry.name, 0)
        except NotApplicable:
            continue
        with tempfile.TemporaryDirectory() as target:
            try:
                exporter.call("ernie_export", config=exporter.config(), bundle=bundle, target=Path(target))
            except ErnieError as error:
                refused = error
            else:
                return entry.name
    raise refused or NotApplicable("no installed model plugin has a recipe `tiny`")


def _tiny(name: str, seed: int) -> ModelBundle:
    """A tiny model of an installed plugin, without a tokenizer; raises ``NotApplicable`` without a recipe ``tiny``."""
    import paddle

    from erniecore_conformance.architectures import architecture_of

    subject = Subject.installed("model", name)
    config, architecture = architecture_of(subject)
    paddle.seed(seed)
    model = subject.call("ernie_build_model", config=config, architecture=architecture, dtype="float32")
    adapter = subject.call("ernie_state_adapter", architecture=architecture)
    return ModelBundle(model=model, architecture=architecture, adapter=adapter, tokenizer=None)
