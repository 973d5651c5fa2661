"""What the routes share: the settings, the model once it is there, and the requests that are being answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from erniecore.api import Json
from erniecore.api.command import did_you_mean
from erniecore.api.model import Tokenizer
from erniecore_openai.errors import ApiError
from erniecore_openai.mailbox import Mailbox
from erniecore_openai.metrics import Metrics

if TYPE_CHECKING:
    from erniecore_generation.engine.requests import CompletionEngine, EngineStats, Ticket

    from erniecore_openai.config import OpenAIConfig
    from erniecore_openai.constraints import Vocabulary

T = TypeVar("T")
Phase = Literal["loading", "ready", "draining", "failed"]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model that answers.

    Attributes:
        name: for clients. context: most tokens of prompt and completion. stop_ids: tokens that end a completion.
        generation: content of generation_config.json. vocabulary: for constraints. created: Unix time.
        adapter, parent: of an adapter its name and that of its base; empty: of a base.
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
    adapter: str = ""
    parent: str = ""


class Serving:
    """The server while it lives."""

    def __init__(self, settings: OpenAIConfig) -> None:
        self.settings = settings
        self.metrics = Metrics(self.stats, len(settings.adapters))
        self.draining = False
        self._model: ServedModel | None = None
        self._named: dict[str, ServedModel] = {}
        self._active: dict[str, Sequence[Ticket]] = {}
        self._media_bytes: dict[str, int] = {}
        self._mailbox: Mailbox | None = None
        # one thread: templates and tokenizers are not written for several, and the event loop must not wait for them
        self._texts = ThreadPoolExecutor(1, "erniecore-texts")
        self._images = ThreadPoolExecutor(settings.media_threads, "erniecore-images")

    def open(self, model: ServedModel, *adapters: ServedModel) -> None:
        """Requests are answered from now on, by the model and by adapters on it, which share its engine."""
        self._named = {served.name: served for served in (model, *adapters)}
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
        """The model for a request; None: the base. Raises ``ApiError`` 503 before it is read and at the end, 404 for a name
        that none has."""
        if self._model is None or self.draining:
            text = "the server is stopping" if self.draining else "the model is being read; try again in a moment"
            raise ApiError(503, text, code="draining" if self.draining else "loading")
        if name is not None and name not in self._named:
            close = did_you_mean(name, self._named)
            text = f"no such model; this server has {', '.join(self._named)}" + (f"; {close}" if close else "")
            raise ApiError(404, text, param="model", code="model_not_found")
        return self._model if name is None else self._named[name]

    def models(self) -> list[ServedModel]:
        """All that clients can name, the base first. Raises ``ApiError`` 503 as :meth:`model`."""
        self.model()
        return list(self._named.values())

    async def in_texts(self, work: Callable[..., T], *args: Any) -> T:
        """Run what encodes or renders, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, work, *args)

    async def in_images(self, work: Callable[..., T], *args: Any) -> T:
        """Run what decodes an image or a video: a few at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._images, work, *args)

    def mailbox(self) -> Mailbox:
        """Of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return self._mailbox

    def hold_media(self, request_id: str, num_bytes: int) -> None:
        """Count a further decoded image of a request until it has ended. Raises ``ApiError`` 400 for more than the settings
        allow, and 429 where those of other requests leave no room."""
        most = self.settings.media_bytes
        num_bytes += self._media_bytes.get(request_id, 0)
        if num_bytes > most:
            text = f"the images take {num_bytes} bytes when they are decoded; at most {most} are taken"
            raise ApiError(400, text, param="messages", code="invalid_media")
        if num_bytes + sum(taken for name, taken in self._media_bytes.items() if name != request_id) > most:
            raise ApiError(429, "images of other requests take the memory; try again in a moment", code="media_full")
        self._media_bytes[request_id] = num_bytes

    def check_room(self) -> None:
        """Raises ``ApiError`` 429 where as many requests wait as may: each of those that are answered has a row."""
        waiting = len(self._active) - self.model_in_use.engine.stats().rows
        if waiting >= self.settings.waiting_requests:
            raise ApiError(429, f"{max(waiting, 0)} requests wait; try again in a moment", code="queue_full")

    def began(self, request_id: str, tickets: Sequence[Ticket]) -> None:
        """A request is being answered."""
        self._active[request_id] = tickets

    def ended(self, request_id: str) -> None:
        """It is no longer; what it still has in the engine ends."""
        self._media_bytes.pop(request_id, None)
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
        """End the threads for texts and images."""
        for pool in (self._texts, self._images):
            pool.shutdown(wait=False, cancel_futures=True)
