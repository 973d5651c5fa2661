"""The serving engine for the requests of one call of the harness."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from erniecore_generation.engine.engine import Engine
from erniecore_generation.engine.requests import Event

from erniecore.api.adapter import AdapterChoice
from erniecore.api.model import ModelBundle


@contextmanager
def running_engine(bundle: ModelBundle, *, rows: int, context: int, waiting: int) -> Iterator[Engine]:
    """An engine over the model as it is, as long as the block runs; the model must not be used meanwhile.

    Args:
        bundle: with a tokenizer. rows: sequences that are decoded together. context: most tokens of one.
    """
    assert bundle.tokenizer is not None
    # a model that was opened with an adapter has that one; the engine's own default is the base
    names = bundle.model.adapter_names() if isinstance(bundle.model, AdapterChoice) else []
    adapter = names[0] if names else None
    # invariant, as the server is by default: scores and completions are then those that it gives
    engine = Engine(
        bundle, bundle.tokenizer, rows=rows, context=context, waiting=waiting, adapter=adapter, invariant=True
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


def put(events: SimpleQueue[tuple[int, Event]], index: int, event: Event) -> None:
    """A listener: hands an event on with the index of its request."""
    events.put((index, event))
