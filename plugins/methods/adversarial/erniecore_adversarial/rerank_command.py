"""``ernie rerank``: several completions of one prompt, the most natural one first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import Adapter, Device, Model, NewTokens, Seed, TopK, TopP

from erniecore.api import UsageError
from erniecore.api.command import JsonOption, opens_models, show, show_json
from erniecore.api.data import Message

JudgeOption = Annotated[
    Path, typer.Option("--judge", metavar="DIR", help="Model that an adversarial run has trained; it may be the same.")
]


@opens_models
def rerank(
    model: Model,
    judge: JudgeOption,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="The prompt.")],
    adapter: Adapter = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue plain text: no chat template.")] = False,
    samples: Annotated[int, typer.Option("--samples", min=2, help="Completions to choose from.")] = 8,
    max_new_tokens: NewTokens = None,
    temperature: Annotated[float, typer.Option("--temperature", metavar="T", help="Sampling temperature.")] = 1.0,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Generate completions of a prompt and rank them by the log-probability of being human-written.

    With --raw the judge reads prompt and completion together, as in training; otherwise only the completion.
    """
    if not prompt:
        raise UsageError("the prompt is empty", where="--prompt")
    if temperature <= 0:
        raise UsageError("greedy completions are all alike", where="--temperature", expected="above 0")
    bundle, tokenizer = generation_options.open_model(model, device, adapter)
    from erniecore_generation.respond import generate_text

    from erniecore_adversarial.judge import Judge

    completions = generate_text(
        bundle.model,
        tokenizer,
        [prompt if raw else [Message("user", prompt)]] * samples,
        max_new_tokens=max_new_tokens,
        generation=bundle.generation,
        do_sample=True,
        temperature=temperature,
        seed=seed,
        **{key: value for key, value in (("top_k", top_k), ("top_p", top_p)) if value is not None},  # type: ignore[arg-type]
    )
    texts = [completion.text for completion in completions]
    judged = [prompt + text if raw else text for text in texts]
    found = iter(Judge.open(judge, device="").log_natural([text for text in judged if text.strip()]))
    scores = [next(found) if text.strip() else float("-inf") for text in judged]
    order = sorted(range(samples), key=lambda i: (-scores[i], i))
    for place in order:
        if as_json:
            score = scores[place] if texts[place].strip() or raw else None
            show_json({"text": texts[place], "log_natural": score, "sample": place}, indent=None)
        else:
            show(f"{scores[place]:+9.4f}  {texts[place]}")
