"""Rollouts: several completions of each prompt with the log-probability of every token, for reinforcement learning.

Sampling is that of ``generate.py``. Reward functions score the completions; methods train on them.
Letters: B completions, b those still decoded, n tokens of one completion, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api.model import Tokenizer
from erniecore.api.reward import Completion
from erniecore_generation.batching import Chosen, Pool
from erniecore_generation.completions import parse_completion, texts_of
from erniecore_generation.generate import generating, rest, stop_token_ids
from erniecore_generation.media import PromptMedia
from erniecore_generation.sampling import Sampling, scale_temperature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion as tokens.

    Attributes:
        ids: int64 [n], the token that ended it included.
        log_probs: float64 [n], of each token under softmax(logits / temperature), before top-k, top-p and min-p.
        entropies: float64 [n], of that distribution, in nats.
        finished: it ended with a stop token; ``False``: it was cut off at the limit.
    """

    ids: Ints
    log_probs: Floats
    entropies: Floats
    finished: bool


def roll_out(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    max_new_tokens: int | Sequence[int],
    copies: int = 1,
    streams: Sequence[int] | None = None,
    batch_size: int = 0,
    media: Sequence[PromptMedia | None] = (),
    until: int = 0,
    ended: Callable[[bool], bool] | None = None,
) -> list[Rollout]:
    """Complete every prompt ``copies`` times, in evaluation mode; those of one prompt are adjacent, in the order of the prompts.

    Args:
        sampling: its ``seed`` and a completion's random stream determine the completion, whatever else is in the batch.
        max_new_tokens: of every completion, or one number per prompt.
        streams: random stream of each completion, len(prompts) * copies; default: its index.
        batch_size: completions decoded together, at least one prompt's; as some end, others begin. 0: all at once.
        media: what images add to each prompt, if any.
        until: stop when so many of the first completions have ended; others come as far as they are. 0: all end.
        ended: asked behind every pass: whether those of this process have ended -> those of all processes, which then stop.

    Raises:
        UsageError: a prompt that is empty or leaves no room. NumericsError: logits that are not finite.
    """
    pool = Pool(
        model,
        prompts,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_token_ids(model, tokenizer),
        pad_id=tokenizer.pad_id,
        streams=streams,
        copies=copies,
        slots=batch_size,
        media=media,
    )
    R, temperature = len(prompts) * copies, 1.0 if sampling.greedy else sampling.temperature
    log_probs, entropies = np.zeros((2, R, int(np.max(max_new_tokens, initial=0))))
    with generating(model):
        for chosen in _chosen(pool, until, asked_at_rest(model, ended)):
            at = chosen.rows, pool.counts[chosen.rows] - 1
            log_probs[at], entropies[at] = measured(chosen.logits, chosen.tokens, temperature)
    return [
        Rollout(pool.completion_ids(row), log_probs[row, :n], entropies[row, :n], bool(pool.stopped[row]))
        for row, n in enumerate(pool.counts.tolist())
    ]


def asked_at_rest(model: Any, ended: Callable[[bool], bool] | None) -> Callable[[bool], bool] | None:
    """``ended``, for which ranks that share passes of ``model`` wait until none of them is in one."""
    if ended is None:
        return None
    ask = ended

    def asked(own: bool) -> bool:
        rest(model)
        return ask(own)

    return asked


def _chosen(pool: Pool, until: int, ended: Callable[[bool], bool] | None) -> Iterator[Chosen]:
    """What the pool chooses, until its first ``until`` rows have ended, and those of other processes (``ended``). A process with
    nothing left to decode goes on asking."""
    for chosen in pool.run():
        yield chosen
        own = not any(row.live for row in pool.rows[:until])
        if ended(own) if ended else (own and until):
            return
    while ended and not ended(True):
        pass


def measured(logits: NDArray[np.float32], tokens: Ints, temperature: float) -> tuple[Floats, Floats]:
    """Log-probability of ``tokens`` [b] and entropy [b] of softmax(logits [b, V] / temperature)."""
    scores = scale_temperature(logits.astype(np.float64), temperature)
    log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    # a logit of -inf has probability 0 and adds nothing
    finite = np.where(np.isfinite(log_p), log_p, 0.0)
    return log_p[np.arange(len(tokens)), tokens], -(np.exp(log_p) * finite).sum(axis=-1)


def completions_of(
    tokenizer: Tokenizer, prompt: Sequence[int], rollouts: Sequence[Rollout], reference: Sequence[int]
) -> list[Completion]:
    """Completions of one prompt and its reference answer as text, parsed in the same way, for reward functions.

    Args:
        prompt: ids of the prompt, generation prompt included. reference: ids of the reference answer.
    """
    # only the template writes special tokens, so a user's text cannot imitate them
    shown = tokenizer.decode(list(prompt), skip_special=False)
    thinking = tokenizer.decode(list(prompt[-4:]), skip_special=False).rstrip().endswith("<think>")
    expected_text, *texts = texts_of(tokenizer, [reference, *(rollout.ids.tolist() for rollout in rollouts)])
    expected = parse_completion(expected_text, thinking=thinking).content
    found = []
    for rollout, text in zip(rollouts, texts, strict=True):
        parts = parse_completion(text, thinking=thinking)
        size = len(rollout.ids)
        found.append(Completion(shown, text, parts.content, parts.reasoning, expected, rollout.finished, size))
    return found
