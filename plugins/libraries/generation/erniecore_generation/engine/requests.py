"""What goes into the serving engine and what comes out: requests, events, statistics and errors. Plain data, no Paddle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from erniecore.api import UsageError
from erniecore_generation.sampling import Constraint, Sampling

if TYPE_CHECKING:
    from erniecore_generation.media import PromptMedia

Reason = Literal["stop", "length", "abort"]
State = Literal["new", "running", "draining", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, and how it is continued.

    Attributes:
        ids: the prompt, without padding.
        max_new_tokens: 0 only scores the prompt, which then may have one token more than the context.
        min_new_tokens: none of ``stop_ids`` is sampled before so many tokens, unless ``constraint`` leaves nothing else.
        stop_ids: tokens that end the completion, and belong to it.
        stream: random stream; the seed is ``sampling.seed``. Both determine the completion, whatever else is decoded.
        logprobs: with every new token its log-probability and the k most likely tokens; k may be 0. None: without.
        prompt_logprobs: the same for the tokens of the prompt, of which the first has none.
        scored_from: place of the first token of the prompt whose log-probability is wanted; those before it have none, and
            what stands before it may come from the prefix cache.
        adapter: name of the adapter; empty: the base alone; None: what the engine uses for requests that name none.
        constraint: which tokens may come next; one object per request.
        priority: lower ones first, equal ones in the order of arrival.
        media: what images add to the prompt (``Responder.encode`` makes ids and media); chunks of it cut no image.
    """

    ids: tuple[int, ...]
    sampling: Sampling
    max_new_tokens: int
    min_new_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    stream: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    scored_from: int = 0
    adapter: str | None = None
    constraint: Constraint | None = None
    priority: int = 0
    media: PromptMedia | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a token, and the most likely (token, log-probability) at its place, best first; of equal ones the
    lower id."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of one step; several where draft tokens were accepted. ``logprobs``: one per token, if asked for."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptScored:
    """One entry per token of the prompt; None for the first one and for those before ``scored_from``."""

    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a request.

    Attributes:
        reason: ``stop`` a stop token, or a constraint that is complete; ``length`` no tokens left; ``abort`` cancelled.
        cached_tokens: tokens of the prompt that were in the prefix cache.
        queue_s, prefill_s, decode_s: seconds before its first pass, to its first token, and from there to its last.
        draft_tokens, accepted_tokens: of speculative decoding.
    """

    reason: Reason
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    draft_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended with an error, which is its own or the engine's."""

    error: BaseException


Event: TypeAlias = Tokens | PromptScored | Finished | Failed
Listener: TypeAlias = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that was accepted; ``number`` counts all requests of an engine."""

    number: int
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at one moment.

    Attributes:
        state: ``failed`` with ``error``. invariant: whether completions do not depend on what else is decoded.
        rows: the most that are decoded together. running: requests that have a row. waiting: those that have none yet.
        steps: turns of the engine, each at most one chunk of a prompt and one pass over all rows.
        prompt_tokens, new_tokens: of all requests so far. cached_tokens: those of prompts that were not computed.
        prefix_blocks, prefix_bytes: what the prefix cache holds. prefix_queries, prefix_hits: tokens looked up and found.
        draft_tokens, accepted_tokens: of speculative decoding.
        finished, aborted, failed: requests that ended so.
        running_adapters, waiting_adapters: of requests that have a row, and of those that wait for one; sorted.
    """

    state: State
    error: str
    invariant: bool
    rows: int
    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    prefix_blocks: int
    prefix_bytes: int
    prefix_queries: int
    prefix_hits: int
    draft_tokens: int
    accepted_tokens: int
    finished: int
    aborted: int
    failed: int
    running_adapters: tuple[str, ...] = ()
    waiting_adapters: tuple[str, ...] = ()


class QueueFull(UsageError):
    """As many requests wait as may."""


class EngineStopped(UsageError):
    """The engine takes no requests: it was not started, is stopping, has stopped or failed; its cause says why."""


class Unavailable(UsageError):
    """Nothing could compute the completion just now; asking again may help."""


class CompletionEngine(Protocol):
    """What completes requests: an ``Engine``, or what stands where one does. The package's docstring has the rules."""

    def start(self) -> None:
        """Begin to take requests."""
        ...

    def submit(self, request: GenerationRequest, listener: Listener) -> Ticket:
        """Queue a request; the listener hears of all that follows."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """End a request, if it has not ended."""
        ...

    def stop(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and end."""
        ...

    def stats(self) -> EngineStats:
        """What it does at this moment."""
        ...
