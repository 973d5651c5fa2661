"""The process that serves: the port is open before the model is read, running completions end before the process does.

The main thread reads the model and then waits for a signal; HTTP has a thread, the engine has one. The first SIGTERM or
Ctrl-C lets running completions finish and refuses new ones, the second ends the process at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from erniecore_generation.options import open_model
from erniecore_serve.http import listening, stop_asked
from erniecore_serve.keys import api_key, check_address
from erniecore_text.proof import Proof
from fastapi import FastAPI

from erniecore.api import CheckpointError, UsageError
from erniecore.api.command import note, open_tokenizer, show
from erniecore_openai.adapters import check_adapters, models_of, with_adapters
from erniecore_openai.app import make_app
from erniecore_openai.config import OpenAIConfig
from erniecore_openai.constraints import Vocabulary
from erniecore_openai.rows import row_prompt
from erniecore_openai.state import ServedModel, Serving

if TYPE_CHECKING:
    from erniecore_generation.engine.engine import Engine

Extension: TypeAlias = Callable[[FastAPI, Serving, str], None]
#: Tokens of a context where neither the settings nor the model say.
_DEFAULT_CONTEXT = 4096


def serve(settings: OpenAIConfig, directory: Path) -> int:
    """Serve the model in ``directory`` until a signal; returns the exit code.

    Raises:
        UsageError: no model, an adapter of another one, an address that needs a key. EnvironmentFault: an address that cannot
            be listened on. CheckpointError: a prompt that differs from the one in training. Whatever reading the model raises.
    """
    return serve_model(settings, directory, lambda: read_model(settings, directory))


def serve_model(
    settings: OpenAIConfig, directory: Path, read: Callable[[], ServedModel], extend: Extension | None = None
) -> int:
    """The same, for a model that ``read`` gives; ``extend`` adds routes and metrics, and is told the API key."""
    if not (directory / "config.json").is_file():
        raise UsageError("no model here", where=str(directory), expected="a directory with config.json")
    for text in check_adapters(settings.adapters, directory, settings.name or model_name(directory)):
        note(f"note: {text}")
    key = api_key(settings.key_file)
    check_address(settings.host, key)
    serving = Serving(settings)
    app = make_app(serving, key)
    if extend is not None:
        extend(app, serving, key)
    with (
        listening(
            app, settings.host, settings.port, header_seconds=settings.body_seconds, connections=settings.connections
        ) as url,
        proof_of(directory) as proof,
    ):
        proof.check(settings.prompt_differences)
        model = read()
        try:
            for line in proof.finish(settings.prompt_differences):
                note(line)
            models = models_of(model, settings.adapters, directory)
            _serve_until_asked(settings, serving, models, url)
        finally:
            model.engine.stop(drain=False)
    serving.close()
    return 0


def _serve_until_asked(settings: OpenAIConfig, serving: Serving, models: Sequence[ServedModel], url: str) -> None:
    model = models[0]
    with stop_asked() as asked:
        model.engine.start()
        serving.open(*models)
        show(f"{model.name} at {url}/v1; stop with Ctrl-C")
        asked.wait()
        serving.draining = True
        left = model.engine.stats()
        if left.running + left.waiting:
            note(f"finishing {left.running + left.waiting} completions; a second signal ends at once")
        model.engine.stop(drain=True, timeout=settings.drain_seconds)
        aborted = model.engine.stats().aborted - left.aborted
        if aborted:
            note(f"{aborted} completions were cut off after {settings.drain_seconds:g} s")


def proof_of(directory: Path) -> Proof:
    """Prompts of rows in training, here and in transformers, which takes its time while the model is read."""
    tokenizer, _ = open_tokenizer(directory)
    servers = {"this server": partial(row_prompt, tokenizer)}
    return Proof(directory, tokenizer, option="prompt_differences=warn", servers=servers)


def model_name(directory: Path) -> str:
    """What clients call the model in ``directory`` where the settings do not name it."""
    place = directory.resolve()
    return place.parent.name if place.name == "model" else place.name


def read_model(
    settings: OpenAIConfig, directory: Path, engine_class: Callable[[], type[Engine]] | None = None
) -> ServedModel:
    """The model with an engine that was not started. Raises ``CheckpointError`` for weights or files that do not fit.

    Args:
        engine_class: imports another class than ``Engine``; called once the device is open, before which nothing imports Paddle.
    """
    bundle, tokenizer = open_model(directory, settings.device, speculative=settings.speculative)
    from erniecore_generation.engine.engine import Engine
    from erniecore_generation.generate import stop_token_ids

    bundle = replace(bundle, model=with_adapters(bundle.model, settings.adapters))
    limit = bundle.model.architecture.get("max_position_embeddings")
    context = settings.context or int(limit or _DEFAULT_CONTEXT)
    if context < 2:
        raise CheckpointError("the model has no context", where=str(directory), found=str(context))
    engine = (Engine if engine_class is None else engine_class())(
        bundle, tokenizer, rows=settings.rows, context=context, chunk=settings.chunk, waiting=settings.waiting,
        prefix_bytes=settings.prefix_bytes, speculative=settings.speculative, invariant=settings.invariant,
    )  # fmt: skip
    vocab_size = int(bundle.model.architecture["vocab_size"])
    return ServedModel(
        name=settings.name or model_name(directory),
        engine=engine, tokenizer=tokenizer, stop_ids=stop_token_ids(bundle.model, tokenizer, bundle.generation),
        generation=dict(bundle.generation or {}), context=engine.context or context,
        vocab_size=vocab_size, vocabulary=Vocabulary(tokenizer, vocab_size),
    )  # fmt: skip
