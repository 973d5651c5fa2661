"""What ``generate``, ``chat`` and ``eval`` share: their options, and opening a model that can talk. No command itself.

Nothing heavy is imported before the arguments are known to make sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.cli import render
from erniecore.errors import CheckpointError

if TYPE_CHECKING:
    from erniecore.engine.generation.respond import Completion
    from erniecore.engine.generation.sampling import Sampling
    from erniecore.types import Json, ModelBundle, Tokenizer

Model = Annotated[Path, typer.Option("--model", metavar="DIR", help="Model directory, run or checkpoint.")]
Adapter = Annotated[
    Path | None, typer.Option("--adapter", metavar="DIR", help="Saved adapter that goes onto the model.")
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")]
NewTokens = Annotated[
    int | None,
    typer.Option("--max-new-tokens", min=1, metavar="N", help="Longest answer [256, or what the context leaves]."),
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", metavar="T", help="Draw instead of taking the likeliest; 0: greedy.")
]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="K", help="Draw from the K likeliest tokens; 0: off.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Draw from the likeliest tokens up to P.")]
MinP = Annotated[float | None, typer.Option("--min-p", metavar="P", help="Leave out what is P times less likely.")]
Repetition = Annotated[
    float | None, typer.Option("--repetition-penalty", metavar="X", help="Above 1: repeat less; 1: off.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the random draws: same seed, same answer.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="Ends the answer; may be repeated.")]
Speculative = Annotated[
    str,
    typer.Option(
        "--speculative",
        metavar="HOW",
        help="Guess tokens ahead, for the same answer in less time: lookup (text that repeats), mtp (the model's prediction "
        "layer) or off.",
    ),
]

#: keys of generation_config.json that are sampling options
_SAMPLING_KEYS = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
)  # fmt: skip


def sampling_from(defaults: Json, seed: int, **given: float | int | None) -> Sampling:
    """Options of the command line over defaults.

    Args:
        defaults: ``{}``: greedy; or the content of a generation_config.json.
        given: option -> value, ``None`` where it was not given. An option that only matters for drawing switches
            drawing on; ``--temperature 0`` switches it off.

    Raises:
        UsageError: a value out of range.
    """
    from erniecore.engine.generation.sampling import Sampling

    chosen: dict[str, Any] = {k: defaults[k] for k in _SAMPLING_KEYS if defaults.get(k) is not None}
    typed = {name: value for name, value in given.items() if value is not None}
    if typed.keys() & {"temperature", "top_k", "top_p", "min_p"}:
        chosen["do_sample"] = typed.get("temperature", chosen.get("temperature", 1.0)) != 0
    return Sampling(**{**chosen, **typed}, seed=seed)


def open_model(
    source: Path, device: str, adapter: Path | None = None, *, speculative: str = "off"
) -> tuple[ModelBundle, Tokenizer]:
    """Open the device and the model, with its prediction layers where ``speculative`` is ``mtp``; remarks go to stderr.

    Raises:
        UsageError: no model there. ConfigError: no such layers. CheckpointError: without a tokenizer, or weights that do not fit.
    """
    from erniecore.engine.models.bundles import locate, open_device, open_located

    located = locate(source)
    if adapter is not None:
        from erniecore.engine.models.adapters import adapter_directory, quantized_base

        found = adapter_directory(adapter)
        located = located._replace(adapter=found, notes=[*located.notes, *quantized_base(found, located.path)])
    for remark in open_device(device, located.path):
        render.note(f"note: {remark}")
    opened = open_located(located, ahead=speculative == "mtp")
    for remark in located.notes:
        render.note(f"note: {remark}")
    if opened.bundle.tokenizer is None:
        raise CheckpointError(
            "this model has no usable tokenizer",
            where=str(source),
            found="; ".join(n for n in opened.notes if n.startswith("without a tokenizer")),
            expected="tokenizer.model beside the weights",
        )
    return opened.bundle, opened.bundle.tokenizer


def note_guesses(speculative: str, completions: Sequence[Completion]) -> None:
    """How often the guesses ahead were right, on stderr."""
    if speculative == "off":
        return
    guessed, right = sum(c.guessed for c in completions), sum(c.right for c in completions)
    share = f" ({right / guessed:.0%})" if guessed else ""
    render.note(f"note: {right} of {guessed} guessed tokens were right{share}")


def answer_json(completion: Any) -> dict[str, Any]:
    """A ``Completion`` as JSON."""
    return {
        "text": completion.text,
        "content": completion.content,
        "reasoning": completion.reasoning,
        "tool_calls": [{"name": c.name, "arguments": c.arguments} for c in completion.tool_calls],
        "ids": list(completion.ids),
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "new_tokens": len(completion.ids),
        "guessed_tokens": completion.guessed,
        "right_guesses": completion.right,
        "tokens_per_s": round(completion.tokens_per_s, 2),
    }
