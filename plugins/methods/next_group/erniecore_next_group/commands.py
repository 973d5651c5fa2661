"""The commands ``ernie parts …``: made data, and what a model of text, images and audio makes of parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erniecore.api import UsageError
from erniecore.api.command import JsonOption, new_group, opens_models, show, show_json, show_table

if TYPE_CHECKING:
    from erniecore_ernie5.tokenizer import Ernie5Tokenizer

app = new_group("Generate, describe and continue images and sounds; example data; scores.")

Model = Annotated[Path, typer.Option("--model", metavar="DIR", help="Model directory, or that of a finished run.")]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="File that is written.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0, help="0: the most likely each time.")]
Seed = Annotated[int, typer.Option("--seed", help="Of what is drawn at random.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.01, help="The longest that is made.")]


@app.command()
def examples(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory that is written.")],
    motifs: Annotated[int, typer.Option("--motifs", min=10, help="How many motifs of tones.")] = 1200,
    seed: Seed = 0,
) -> None:
    """Write made data: shapes, digits and tones with their words, motifs of tones that repeat; part of it held out."""
    from erniecore_ernie5.audio_tokens import AudioTokens

    from erniecore_next_group.made import write

    for name, count in write(out, seed, motifs, AudioTokens()).items():
        show(f"{out / name}.jsonl: {count} rows")


@app.command()
@opens_models
def draw(
    model: Model,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="What is to be seen.")],
    out: Out,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
) -> None:
    """Draw an image of a text: a PNG file."""
    from erniecore_next_group.files import png
    from erniecore_next_group.generation import draw_text, started

    opened, tokenizer = _open(model)
    pixels = draw_text(started(opened, tokenizer, temperature=temperature, seed=seed), text)
    out.write_bytes(png(pixels))
    show(f"{out}: {pixels.shape[1]} x {pixels.shape[0]} pixels")


@app.command()
@opens_models
def describe(
    model: Model,
    file: Annotated[Path, typer.Argument(help="An image, or a WAV file.")],
    temperature: Temperature = 0.0,
    seed: Seed = 0,
) -> None:
    """Say in words what an image shows, or what is heard."""
    from erniecore_next_group.files import read_audio, read_image
    from erniecore_next_group.generation import describe_audio, describe_image, started

    opened, tokenizer = _open(model)
    maker, media, roots = started(opened, tokenizer, temperature=temperature, seed=seed), tokenizer.media, _roots(file)
    if file.suffix.lower() == ".wav":
        show(describe_audio(maker, media.audio.encode(_read(read_audio, file, roots, media.audio))))
    else:
        show(describe_image(maker, _read(read_image, file, roots, media.image)))


@app.command("continue")
@opens_models
def continue_audio(
    model: Model,
    out: Out,
    file: Annotated[Path | None, typer.Option("--audio", metavar="FILE", help="WAV file that goes on.")] = None,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="Or words for a new sound.")] = "",
    seconds: Seconds = 1.0,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
) -> None:
    """Go on with a sound, or make one of a text: a WAV file with what is new."""
    from erniecore_next_group.files import read_audio, wav
    from erniecore_next_group.generation import continue_sound, play_text, started

    if (file is None) == (not text):
        raise UsageError("give a sound or a text", found=f"--audio {file}, --text {text!r}", expected="one of the two")
    opened, tokenizer = _open(model)
    maker, audio = started(opened, tokenizer, temperature=temperature, seed=seed), tokenizer.media.audio
    most = max(1, round(seconds * audio.sample_rate / audio.frame))
    if file is None:
        codes = play_text(maker, text, most)
    else:
        codes = continue_sound(maker, audio.encode(_read(read_audio, file, _roots(file), audio)), most)
    out.write_bytes(wav(audio.decode(codes), audio))
    show(f"{out}: {len(codes) * audio.frame / audio.sample_rate:.2f} s")


@app.command()
@opens_models
def score(
    model: Model,
    data: Annotated[Path, typer.Option("--data", metavar="FILE", help="Rows of parts.")],
    most: Annotated[int, typer.Option("--most", min=0, help="Rows of each task; 0: all.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Count how often a model makes of a prompt exactly what rows have."""
    from erniecore_next_group.scoring import read_rows, score_rows

    found = score_rows(*_open(model), read_rows(data), most)
    if as_json:
        show_json({task: one._asdict() for task, one in found.items()})
        return
    rows = [[task, str(one.rows), f"{one.exact / one.rows:.1%}", f"{one.units:.1%}"] for task, one in found.items()]
    show_table(["task", "rows", "exact", "of pixels, words, codes"], rows)


def _open(model: Path) -> tuple[Any, Ernie5Tokenizer]:
    from erniecore_ernie5.model import Ernie5ForCausalLM
    from erniecore_ernie5.tokenizer import Ernie5Tokenizer

    import erniecore

    bundle = erniecore.open_model(model)
    if not isinstance(bundle.model, Ernie5ForCausalLM) or not isinstance(bundle.tokenizer, Ernie5Tokenizer):
        found = str(bundle.architecture.get("model_type"))
        raise UsageError("this model makes neither images nor sounds", found=found, expected="a model of ernie5")
    return bundle.model, bundle.tokenizer


def _roots(file: Path) -> list[str]:
    return [str(file.absolute().parent)]


def _read(reader: Any, file: Path, roots: list[str], tokens: Any) -> Any:
    from erniecore_media import MediaError

    try:
        return reader(file.name, roots, tokens)
    except MediaError as error:
        facts = {"found": error.found, "expected": error.expected, "fix": error.fix}
        raise UsageError(str(error), where=str(file), **facts) from error
