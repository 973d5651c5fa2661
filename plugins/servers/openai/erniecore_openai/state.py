"""What the routes share: the settings, the model once it is there, and the requests that are being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from erniecore.api import Json
from erniecore.api.model import Tokenizer
from erniecore_openai.errors import ApiError
from erniecore_openai.metrics import Metrics

if TYPE_CHECKING:
    from erniecore_generation.engine.requests import CompletionEngine, EngineStats, Ticket

    from erniecore_openai.constraints import Vocabulary
    from erniecore_openai.plugin import OpenAIConfig

T = TypeVar("T")
Phase = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that answers.

    Attributes:
        name: for clients. context: most tokens of prompt and completion. stop_ids: tokens that end a completion.
        generation: content of generation_config.json. vocabulary: for constraints. created: Unix time.
    """

    name: str
    engine: CompletionEngine
    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    generation: Json
    context: int
    vocab_size: int
    vocabulary: Vocabulary
    created: int = field(default_factory=lambda: int(time.time()))


class Serving:
    """The server while it lives."""

    def __init__(self, settings: OpenAIConfig) -> None:
        self.settings = settings
        self.metrics = Metrics(self.stats)
        self.draining = False
        self._model: ServedModel | None = None
        self._active: dict[str, Sequence[Ticket]] = {}
        # one thread: templates and tokenizers are not written for several, and the event loop must not wait for them
        self._texts = ThreadPoolExecutor(1, "erniecore-texts")

    def open(self, model: ServedModel) -> None:
        """Requests are answered from now on."""
        self._model = model

    @property
    def phase(self) -> Phase:
        """In which part of its life the server is."""
        if self._model is None:
            return "loading"
        if self._model.engine.stats().state == "failed":
            return "failed"
        return "draining" if self.draining else "ready"

    def stats(self) -> EngineStats | None:
        """Of the engine; None while there is none."""
        return None if self._model is None else self._model.engine.stats()

    def model(self, name: str | None = None) -> ServedModel:
        """The model for a request. Raises ``ApiError`` 503 before it is read and at the end, 404 for another name."""
        if self._model is None or self.draining:
            text = "the server is stopping" if self.draining else "the model is being read; try again in a moment"
            raise ApiError(503, text, code="draining" if self.draining else "loading")
        if name is not None and name != self._model.name:
            raise ApiError(
                404, f"no such model; this server has {self._model.name}", param="model", code="model_not_found"
            )
        return self._model

    async def in_texts(self, work: Callable[..., T], *args: Any) -> T:
        """Run what encodes or renders, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, work, *args)

    def began(self, request_id: str, tickets: Sequence[Ticket]) -> None:
        """A request is being answered."""
        self._active[request_id] = tickets

    def ended(self, request_id: str) -> None:
        """It is no longer; what it still has in the engine ends."""
        for ticket in self._active.pop(request_id, ()):
            self.model_in_use.engine.cancel(ticket)

    def abort(self, request_ids: Sequence[str] | None) -> list[str]:
        """End requests, all for None; the ids of those that were there."""
        found = [name for name in (self._active if request_ids is None else request_ids) if name in self._active]
        for name in found:
            for ticket in self._active[name]:
                self.model_in_use.engine.cancel(ticket)
        return found

    @property
    def model_in_use(self) -> ServedModel:
        """The model, whatever the phase."""
        assert self._model is not None
        return self._model

    def close(self) -> None:
        """End the thread for texts."""
        self._texts.shutdown(wait=False, cancel_futures=True)
