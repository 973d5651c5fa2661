"""Generation of token ids: the decoding loop over a model with a cache, for batches with left padding.

Ids only: text, templates, stop strings and streaming of text are ``respond.py``; choosing a token is
``sampling.py``. Letters: B rows of the prompt, b rows still decoded, S prompt length, K positions so far.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from numpy.typing import NDArray

from erniecore.api import CheckpointError, shorten
from erniecore.api.decoding import DecodesWithRanks
from erniecore.api.model_files import codec_of
from erniecore_generation.cache import StaticCache
from erniecore_generation.passes import Passes
from erniecore_generation.prompts import check_prompt
from erniecore_generation.sampling import History, Ints, Sampling, SamplingOptions, choose

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from erniecore.api.model import Tokenizer

#: Called after each step with the new tokens, int64 [B]; finished rows hold the padding id.
Streamer = Callable[[Ints], None]


@contextmanager
def evaluating(model: paddle.nn.Layer) -> Iterator[None]:
    """Evaluation mode without gradients; every sublayer's mode comes back as it was."""
    layers = [model, *model.sublayers()]
    modes = [layer.training for layer in layers]
    model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode


@contextmanager
def generating(model: paddle.nn.Layer) -> Iterator[None]:
    """:func:`evaluating` around a generation; on a model of which other ranks have parts, these take part in its passes. All of
    them come here equally often, also those that have nothing to generate."""
    with evaluating(model), model.decoding() if isinstance(model, DecodesWithRanks) else nullcontext():
        yield


def rest(model: Any) -> None:
    """Within :func:`generating`, before ranks ask each other something: passes that others still need, as ranks that share
    experts do, are made first."""
    if isinstance(model, DecodesWithRanks):
        model.rest()


def cached_layers(model: Any) -> list[int]:
    """The decoder layers of ``model`` that are in this process, by their number in the whole model."""
    layers = int(model.architecture["num_hidden_layers"])
    return list(model.cached_layers(layers) if isinstance(model, DecodesWithRanks) else range(layers))


class Decoder:
    """Decodes a batch step by step; rows end on their own, and are left out once half of the batch has ended.

    Args:
        model: a ``CausalLM`` in evaluation mode.
        input_ids: int64 [B, S], padded on the left.
        attention_mask: [B, S], 1 = real token; ``None``: no padding.
        max_new_tokens: also the size of the cache beyond the prompt.
        stop_ids: tokens that end a row; the token itself still belongs to the row.
        pad_id: what finished rows show.
        streams: one random stream per row (default: the row's index).
        copies: rows per prompt, next to each other; the prompt is read once for all of them. ``streams`` and all rows
            below count copies: B = prompts * copies.
        use_cache: ``False`` runs the whole sequence again for each token (for comparison only).

    Attributes:
        live: bool [B], rows that still decode.
        rows: int64 [b], the rows that the last step computed; logits: float32 [b, V], what it chose from.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Ints,
        attention_mask: Ints | None = None,
        *,
        sampling: Sampling,
        max_new_tokens: int,
        stop_ids: Collection[int] = (),
        pad_id: int = 0,
        streams: Sequence[int] | None = None,
        copies: int = 1,
        use_cache: bool = True,
    ) -> None:
        mask = np.ones_like(input_ids) if attention_mask is None else attention_mask.astype(np.int64)
        check_prompt(input_ids, mask, model.architecture, max_new_tokens)
        batch, length = input_ids.shape[0] * copies, input_ids.shape[1]
        self.model, self.sampling, self.pad_id = model, sampling, pad_id
        self.live: NDArray[np.bool_] = np.ones(batch, dtype=bool)
        self.steps = 0
        self._stop_ids = np.array(sorted(stop_ids), dtype=np.int64)
        self._streams = np.arange(batch) if streams is None else np.asarray(streams)
        self.rows: Ints = np.arange(batch)
        self.logits: NDArray[np.float32] = np.empty([0, 0], np.float32)
        self._copies = copies
        self._ids, self._mask = input_ids, mask
        self._padded = not mask.all()
        self._passes = Passes(model)
        self._cache: StaticCache | None = None
        if use_cache:
            self._cache = StaticCache(cached_layers(model), length + max_new_tokens, codec_of(model))
        self._history: History | None = None
        if sampling.penalized:
            prompts = [ids[real == 1].tolist() for ids, real in zip(input_ids, mask, strict=True)]
            self._history = History(
                [prompt for prompt in prompts for _ in range(copies)], int(model.architecture["vocab_size"])
            )

    def step(self) -> Ints:
        """Decode one token per live row; int64 [B], the padding id for rows that had ended before."""
        self.logits = self._next_logits()
        chosen = choose(
            self.logits,
            self.sampling,
            step=self.steps,
            streams=self._streams[self.rows],
            history=self._history,
        )
        if self._history is not None:
            self._history.add(chosen)
        tokens = np.full(len(self.live), self.pad_id, dtype=np.int64)
        tokens[self.rows] = chosen
        tokens[~self.live] = self.pad_id
        self._ids = np.concatenate([self._ids, chosen[:, None]], axis=1)
        self._mask = np.concatenate([self._mask, np.ones_like(chosen)[:, None]], axis=1)
        self.live &= ~(tokens[:, None] == self._stop_ids).any(axis=1)
        self.steps += 1
        return tokens

    def finish(self, row: int) -> None:
        """End a row for a reason of the caller's (a stop string)."""
        self.live[row] = False

    def _next_logits(self) -> NDArray[np.float32]:
        """float32 [b, V] after the last token."""
        self._compact()
        past = self._cache.length if self._cache is not None else 0
        positions = np.maximum(np.cumsum(self._mask, axis=1) - 1, 0)
        mask = self._mask if self._padded else None
        logits = self._passes.last(self._ids[:, past:], positions[:, past:], mask, self._cache)
        return logits if len(logits) == len(self.rows) else self._multiply(logits)

    def _multiply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """After the prompts: one row for each of their copies."""
        prompts = np.repeat(np.arange(len(logits)), self._copies)
        self._ids, self._mask = self._ids[prompts], self._mask[prompts]
        if self._cache is not None:
            self._cache.keep(prompts.tolist())
        return logits[prompts]

    def _compact(self) -> None:
        """Leave out ended rows when they are at least half: copying the cache then pays for itself."""
        alive = np.flatnonzero(self.live[self.rows])
        if not 0 < 2 * len(alive) <= len(self.rows):
            return
        self.rows, self._ids, self._mask = self.rows[alive], self._ids[alive], self._mask[alive]
        if self._cache is not None:
            self._cache.keep(alive.tolist())
        if self._history is not None:
            self._history.keep(alive)


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Ints, Ints]:
    """Ids and mask, int64 [B, S], of prompts of different lengths."""
    width = max((len(ids) for ids in prompts), default=0)
    ids = np.full((len(prompts), width), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    return ids, mask


def eos_ids(*sources: Any) -> frozenset[int]:
    """The ids in ``eos_token_id`` of some JSON objects (a number, a list or absent). Raises ``CheckpointError`` for others."""
    found: set[int] = set()
    for source in sources:
        value = (source or {}).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int for token in ids):
            expected = "a token id or a list of them, in config.json and generation_config.json"
            raise CheckpointError("eos_token_id is no id", found=shorten(value), expected=expected, code="ERN-K021")
        found.update(ids)
    return frozenset(found)


def stop_token_ids(model: Any, tokenizer: Tokenizer, generation: Any = None) -> frozenset[int]:
    """Ids that end a completion: ``eos_token_id`` of the model and of ``generation``, and the chat template's end tokens."""
    ids = {*eos_ids(model.architecture, generation), tokenizer.eos_id}
    template = tokenizer.chat_template
    for token in (template.stop, template.turn_end) if template is not None else ():
        if token in tokenizer.special_tokens:
            ids.add(tokenizer.special_tokens[token])
    return frozenset(ids)


def generate(
    model: Any,
    input_ids: Any,
    *,
    max_new_tokens: int,
    attention_mask: Any = None,
    eos: int | Collection[int] | None = None,
    stop_token_ids: Collection[int] = (),
    pad_id: int | None = None,
    use_cache: bool = True,
    streamer: Streamer | None = None,
    **sampling: Unpack[SamplingOptions],
) -> paddle.Tensor:
    """Continue token ids.

    Args:
        model: a ``CausalLM``; its training mode is restored afterwards.
        input_ids: int [B, S] or [S], tensor, array or lists; padded on the left where rows differ in length.
        attention_mask: [B, S], 1 = real token; needed when rows are padded.
        eos: ends a row; ``None`` takes ``eos_token_id`` of the architecture, ``()`` ignores it.
        stop_token_ids: further ids that end a row.
        pad_id: fills ended rows; ``None`` takes ``pad_token_id`` of the architecture, else 0.
        sampling: ``do_sample``, ``temperature``, ``top_k``, ``seed`` ...: see :class:`Sampling`. Greedy by default.

    Returns:
        int64 [B, n], n <= max_new_tokens: new tokens only, the one that ended a row included.

    Raises:
        UsageError: an impossible prompt or sampling value. NumericsError: logits that are not finite.
    """
    ids = np.atleast_2d(np.asarray(input_ids)).astype(np.int64)
    mask = None if attention_mask is None else np.atleast_2d(np.asarray(attention_mask)).astype(np.int64)
    ending = eos_ids(model.architecture) if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
    pad = int(model.architecture.get("pad_token_id") or 0) if pad_id is None else pad_id
    stops = ending | frozenset(stop_token_ids)
    new: list[Ints] = []
    with generating(model):
        chosen, size = Sampling(**sampling), max_new_tokens
        decoder = Decoder(
            model, ids, mask, sampling=chosen, max_new_tokens=size, stop_ids=stops, pad_id=pad, use_cache=use_cache
        )
        while decoder.live.any() and decoder.steps < max_new_tokens:
            new.append(decoder.step())
            if streamer is not None:
                streamer(new[-1])
    return paddle.to_tensor(np.stack(new, axis=1))
