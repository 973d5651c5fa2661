"""What a model can be asked: checks of prompts and requests before any work is done. No Paddle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from erniecore.api import UsageError
from erniecore_generation.sampling import Ints

if TYPE_CHECKING:
    from erniecore_generation.engine.requests import GenerationRequest


def check_prompt(input_ids: Ints, mask: Ints, architecture: Any, max_new_tokens: int) -> None:
    """Raise ``UsageError`` for a prompt that the model cannot take, before any work is done."""
    if input_ids.ndim != 2 or input_ids.shape[0] == 0 or input_ids.shape[1] == 0:
        raise UsageError(
            "the prompt is empty", found=f"ids of shape {list(input_ids.shape)}", expected="[rows, tokens]"
        )
    if max_new_tokens < 1:
        raise UsageError("nothing to generate", where="max_new_tokens", found=str(max_new_tokens), expected=">= 1")
    if mask.shape != input_ids.shape:
        raise UsageError(
            "mask and ids differ in shape", found=f"{list(mask.shape)}", expected=f"{list(input_ids.shape)}"
        )
    if not mask[:, -1].all() or (np.diff(mask, axis=1) < 0).any():
        raise UsageError(
            "prompts are padded on the wrong side", where="attention_mask", expected="padding on the left only"
        )
    vocab = int(architecture["vocab_size"])
    if input_ids.min() < 0 or input_ids.max() >= vocab:
        worst = int(input_ids.max() if input_ids.max() >= vocab else input_ids.min())
        raise UsageError("token id outside the vocabulary", found=str(worst), expected=f"0 to {vocab - 1}")
    limit = architecture.get("max_position_embeddings")
    longest = int(mask.sum(axis=1).max())
    if limit is not None and longest >= int(limit):
        raise UsageError(
            "the prompt is longer than the model's context",
            found=f"{longest} tokens",
            expected=f"at most {int(limit) - 1} tokens (max_position_embeddings is {limit})",
            fix="shorten the prompt",
        )
    if limit is not None and longest + max_new_tokens > int(limit):
        raise UsageError(
            "prompt and completion do not fit into the model's context",
            found=f"{longest} + {max_new_tokens} tokens",
            expected=f"at most {limit} together (max_position_embeddings)",
            fix=f"ask for at most {int(limit) - longest} new tokens",
        )


def check_request(request: GenerationRequest, vocab_size: int, context: int | None) -> None:
    """Raise ``UsageError`` for a request that no engine with this vocabulary and context can take.

    Args:
        context: tokens that prompt and completion may have together; None: any number.
    """
    ids = np.array([request.ids], np.int64)
    scores_only = not request.max_new_tokens and request.prompt_logprobs is not None
    # the last token of a prompt that is only scored is predicted, and need not be read
    if scores_only and context is not None and len(request.ids) > context + 1:
        raise UsageError(
            "the prompt is longer than the model's context",
            found=f"{len(request.ids)} tokens",
            expected=f"at most {context + 1} tokens to be scored (the context has {context})",
            fix="shorten the prompt",
        )
    architecture = {"vocab_size": vocab_size, "max_position_embeddings": None if scores_only else context}
    check_prompt(ids, np.ones_like(ids), architecture, 1 if scores_only else request.max_new_tokens)
    for name in ("logprobs", "prompt_logprobs", "min_new_tokens", "scored_from"):
        if (getattr(request, name) or 0) < 0:
            raise UsageError("a request counts below zero", where=name, found=str(getattr(request, name)))
    for token, _ in request.sampling.logit_bias:
        if token >= vocab_size:
            raise UsageError("token id outside the vocabulary", where="logit_bias", found=str(token))
