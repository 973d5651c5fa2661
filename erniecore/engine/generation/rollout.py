"""Rollouts: several answers to each prompt with the probability of every token, for methods that learn from what the
model tries. Sampling is that of ``generate.py``; what an answer is worth is decided by scorers, what is learned by methods.

Letters: B answers, b those still decoded, n tokens of one answer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.engine.generation.answers import parse_answer, texts_of
from erniecore.engine.generation.batching import Pool
from erniecore.engine.generation.generate import evaluating, stop_token_ids
from erniecore.engine.generation.sampling import Sampling, scale_temperature
from erniecore.types import Attempt, Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer as tokens.

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
    max_new_tokens: int,
    copies: int = 1,
    streams: Sequence[int] | None = None,
    batch_size: int = 0,
) -> list[Rollout]:
    """Answer every prompt ``copies`` times; answers to one prompt stand together, in the order of the prompts.

    Args:
        model: a ``CausalLM``, used in evaluation mode; its mode is restored.
        sampling: how tokens are drawn. Its ``seed`` and an answer's stream decide the answer; neighbours do not.
        streams: random stream of each answer, len(prompts) * copies; default: its place.
        batch_size: answers decoded together, at least those of one prompt; as some end, others begin. 0: all at once.

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
    )
    R, temperature = len(prompts) * copies, 1.0 if sampling.greedy else sampling.temperature
    log_probs, entropies = np.zeros((R, max_new_tokens)), np.zeros((R, max_new_tokens))
    with evaluating(model):
        for chosen in pool.run():
            at = chosen.rows, pool.counts[chosen.rows] - 1
            log_probs[at], entropies[at] = measured(chosen.logits, chosen.tokens, temperature)
    return [
        Rollout(pool.answer(row), log_probs[row, :n], entropies[row, :n], bool(pool.stopped[row]))
        for row, n in enumerate(pool.counts.tolist())
    ]


def measured(logits: NDArray[np.float32], tokens: Ints, temperature: float) -> tuple[Floats, Floats]:
    """Log-probability of ``tokens`` [b] and entropy [b] of softmax(logits [b, V] / temperature)."""
    scores = scale_temperature(logits.astype(np.float64), temperature)
    log_p = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    # a logit of -inf has probability 0 and adds nothing
    finite = np.where(np.isfinite(log_p), log_p, 0.0)
    return log_p[np.arange(len(tokens)), tokens], -(np.exp(log_p) * finite).sum(axis=-1)


def attempts_of(
    tokenizer: Tokenizer, prompt: Sequence[int], answers: Sequence[Rollout], right: Sequence[int]
) -> list[Attempt]:
    """Answers to one prompt and their reference as text, all read in the same way, for the scorers.

    Args:
        prompt: ids up to where the model answers. right: ids of the reference answer.
    """
    # only the template writes control tokens, so a user's text cannot pass for them
    shown = tokenizer.decode(list(prompt), skip_special=False)
    thinking = tokenizer.decode(list(prompt[-4:]), skip_special=False).rstrip().endswith("<think>")
    reference, *texts = texts_of(tokenizer, [right, *(answer.ids.tolist() for answer in answers)])
    expected = parse_answer(reference, thinking=thinking).content
    found = []
    for answer, text in zip(answers, texts, strict=True):
        parts = parse_answer(text, thinking=thinking)
        size = len(answer.ids)
        found.append(Attempt(shown, text, parts.content, parts.reasoning, expected, answer.finished, size))
    return found
