"""What ``generate``, ``chat`` and ``eval`` share: their options, and opening a model for generation. No command itself.

Nothing heavy is imported before the arguments are known to make sense.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import CheckpointError
from erniecore.api.command import note

if TYPE_CHECKING:
    from erniecore.api import Json
    from erniecore.api.model import ModelBundle, Tokenizer
    from erniecore_generation.respond import Completion
    from erniecore_generation.sampling import Sampling

Model = Annotated[Path, typer.Option("--model", metavar="DIR", help="Model directory, run or checkpoint.")]
Adapter = Annotated[
    Path | None, typer.Option("--adapter", metavar="DIR", help="Saved adapter that goes onto the model.")
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="Device plugin.")]
NewTokens = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens", min=1, metavar="N", help="Maximum number of new tokens [256, or what the context leaves]."
    ),
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", metavar="T", help="Sampling temperature; 0: greedy decoding.")
]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="K", help="Sample from the K most likely tokens; 0: off.")]
TopP = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Nucleus sampling: the smallest set with cumulative probability P."),
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="P", help="Drop tokens less likely than P times the most likely one."),
]
Repetition = Annotated[
    float | None, typer.Option("--repetition-penalty", metavar="X", help="Above 1: repeat less; 1: off.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed of sampling.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop string; may be repeated.")]
Speculative = Annotated[
    str,
    typer.Option(
        "--speculative",
        metavar="DRAFTER",
        help="Speculative decoding, for the same completion in less time: lookup (n-gram lookup in the text so far), mtp (the "
        "model's MTP layer) or off.",
    ),
]

IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Decode --max-new-tokens tokens, whatever they are (to measure).")
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking",
        help="Ask for reasoning first, or for none, where the chat template has a switch [as the template has it].",
        show_default=False,
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
        given: option -> value, ``None`` where it was not given. An option that only matters for sampling switches
            sampling on; ``--temperature 0`` switches it off.

    Raises:
        UsageError: a value out of range.
    """
    from erniecore_generation.sampling import Sampling

    chosen: dict[str, Any] = {k: defaults[k] for k in _SAMPLING_KEYS if defaults.get(k) is not None}
    typed = {name: value for name, value in given.items() if value is not None}
    if typed.keys() & {"temperature", "top_k", "top_p", "min_p"}:
        chosen["do_sample"] = typed.get("temperature", chosen.get("temperature", 1.0)) != 0
    return Sampling(**{**chosen, **typed}, seed=seed)


def open_model(
    source: Path, device: str, adapter: Path | None = None, *, speculative: str = "off"
) -> tuple[ModelBundle, Tokenizer]:
    """Open the device and the model, with its prediction layers where ``speculative`` is ``mtp``; notes go to stderr.

    Raises:
        UsageError: no model there. ConfigError: no such layers. CheckpointError: without a tokenizer, or weights that do not fit.
    """
    from erniecore.api.run import locate, open_device, open_located

    located = locate(source)
    if adapter is not None:
        from erniecore.api.run import adapter_directory, base_notes

        found = adapter_directory(adapter)
        located = located._replace(adapter=found, notes=[*located.notes, *base_notes(found, located.path)])
    for line in open_device(device, located.path):
        note(f"note: {line}")
    opened = open_located(located, mtp=speculative == "mtp", compact=device == "cpu")
    for line in located.notes:
        note(f"note: {line}")
    if opened.bundle.tokenizer is None:
        raise CheckpointError(
            "this model has no usable tokenizer",
            where=str(source),
            found="; ".join(n for n in opened.notes if n.startswith("without a tokenizer")),
            expected="tokenizer.model beside the weights",
        )
    return opened.bundle, opened.bundle.tokenizer


def note_acceptance(speculative: str, completions: Sequence[Completion]) -> None:
    """Report the acceptance rate of speculative decoding on stderr."""
    if speculative == "off":
        return
    drafted, accepted = (sum(getattr(c, name) for c in completions) for name in ("draft_tokens", "accepted_tokens"))
    rate = f" ({accepted / drafted:.0%})" if drafted else ""
    note(f"note: {accepted} of {drafted} draft tokens accepted{rate}")


def completion_json(completion: Any) -> dict[str, Any]:
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
        "draft_tokens": completion.draft_tokens,
        "accepted_tokens": completion.accepted_tokens,
        "tokens_per_s": round(completion.tokens_per_s, 2),
        "prefill_tokens_per_s": round(completion.prefill_tokens_per_s, 2),
        "decode_tokens_per_s": round(completion.decode_tokens_per_s, 2),
    }
