"""``ernie generate``: the completion of one prompt."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from erniecore_generation import options as generation_options
from erniecore_generation.options import (
    Adapter,
    Device,
    IgnoreEos,
    MinP,
    Model,
    NewTokens,
    Repetition,
    Seed,
    Speculative,
    Stop,
    Temperature,
    Thinking,
    TopK,
    TopP,
)

from erniecore.api import UsageError, counted
from erniecore.api.command import JsonOption, note, opens_models, show, show_json
from erniecore.api.data import Message
from erniecore.api.files import printable

if TYPE_CHECKING:
    from erniecore_generation.respond import Completion

Prompt = Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The prompt.")]
PromptFile = Annotated[
    Path | None, typer.Option("--prompt-file", metavar="FILE", help="The same, from a file; - is stdin.")
]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="Image of the prompt, where it says <image>; may be repeated."),
]
Videos = Annotated[
    list[Path] | None,
    typer.Option("--video", metavar="FILE", help="Video of the prompt, where it says <video>; may be repeated."),
]
System = Annotated[str, typer.Option("--system", metavar="TEXT", help="System message before it.")]


@opens_models
def generate(
    model: Model,
    adapter: Adapter = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    image: Images = None,
    video: Videos = None,
    system: System = "",
    raw: Annotated[bool, typer.Option("--raw", help="Continue plain text: no chat template.")] = False,
    max_new_tokens: NewTokens = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: Repetition = None,
    seed: Seed = 0,
    stop: Stop = None,
    ignore_eos: IgnoreEos = False,
    thinking: Thinking = None,
    speculative: Speculative = "off",
    stream: Annotated[bool, typer.Option("--stream", help="Print tokens as they are generated.")] = False,
    device: Device = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Generate a completion. Greedy unless a sampling option is given. The prompt is one user message unless --raw."""
    text = "" if (image or video) and prompt is None and prompt_file is None else read_prompt(prompt, prompt_file)
    if raw:
        _check_raw({"--system": system, "--thinking": thinking is not None, "--image": image, "--video": video})
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    sampling = generation_options.sampling_from({}, seed, **options, repetition_penalty=repetition_penalty)
    bundle, tokenizer = generation_options.open_model(model, device, adapter, speculative=speculative)
    from erniecore_generation.media import asked
    from erniecore_generation.respond import generate_text

    messages = [*([Message("system", system)] if system else []), asked(text, image or (), video or ())]
    [completion] = generate_text(
        bundle.model,
        tokenizer,
        [text if raw else messages],
        max_new_tokens=max_new_tokens,
        stop=stop or (),
        generation=bundle.generation,
        speculative=speculative,
        thinking=thinking,
        ignore_eos=ignore_eos,
        on_text=(show_chunk_json if as_json else show_chunk) if stream else None,
        **asdict(sampling),
    )
    show_completion(completion, text, as_json=as_json, streamed=stream)
    generation_options.note_acceptance(speculative, [completion])


def _check_raw(options: Mapping[str, object]) -> None:
    """Raises ``UsageError`` for an option that is given and means something in a chat template alone."""
    for option in (option for option, given in options.items() if given):
        raise UsageError(f"{option} needs the chat template", fix=f"leave out --raw or {option}")


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt, from exactly one of its two sources. Raises ``UsageError``."""
    if (prompt is None) == (file is None):
        raise UsageError("give either --prompt or --prompt-file", next="ernie generate --help")
    if prompt is not None:
        text = prompt
    elif str(file) == "-":
        text = sys.stdin.read()
    else:
        text = _read(Path(str(file)))
    if not text:
        raise UsageError("the prompt is empty", where="--prompt" if file is None else str(file))
    return text


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError("cannot read the prompt", where=str(file), found=str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise UsageError("the prompt is not UTF-8", where=str(file), found=f"byte {error.start + 1}") from error


def show_chunk(row: int, chunk: str) -> None:
    """Print a chunk of the completion without delay."""
    sys.stdout.write(_for_stdout(chunk))
    sys.stdout.flush()


def _for_stdout(text: str) -> str:
    """Control characters of a model must not reach a terminal; a pipe gets the text as it is."""
    return printable(text) if sys.stdout.isatty() else text


def show_chunk_json(row: int, chunk: str) -> None:
    """Print a chunk of the completion as a JSON line."""
    if chunk:
        show_json({"event": "text", "text": chunk}, indent=None)


def show_completion(completion: Completion, prompt: str, *, as_json: bool, streamed: bool) -> None:
    """Print the completion, unless it was streamed already, and a note on stderr if it was truncated."""
    if as_json:
        body = {"prompt": prompt, **generation_options.completion_json(completion)}
        show_json({"event": "completion", **body} if streamed else body, indent=None if streamed else 2)
        return
    if not streamed:
        show_chunk(0, completion.text)
    show("")
    if completion.finish_reason == "length":
        note(f"note: the completion was truncated after {counted(len(completion.ids), 'token')} (--max-new-tokens)")
