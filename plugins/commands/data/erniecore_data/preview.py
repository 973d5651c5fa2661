"""What the data commands were asked to look at, as a run with the same arguments would: the files, how their rows are read, and
the tokenizer and encoder that make samples of them. Imports no paddle.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erniecore.api import UsageError
from erniecore.api.command import load_settings, split_files
from erniecore.api.rows import Source, build_encoder

if TYPE_CHECKING:
    from erniecore.api import Section
    from erniecore.api.command import LoadedSettings
    from erniecore.api.method import Encoder
    from erniecore.api.model import Tokenizer

#: without one in the settings: most data is for it
DEFAULT_METHOD = "sft"


@dataclass(frozen=True)
class Preview:
    """Files as a run reads them.

    Attributes:
        sources: the files that were named, else those of ``data.train`` and ``data.eval``.
        format, sections: as ``data.format`` and ``formats``. max_seq_len: as ``data.max_seq_len``.
        tokenizer, encoder: ``None`` without a model. vocabulary: ids of the model; 0: not known.
        arguments: what ``ernie data check`` takes for the same. unchecked: what was asked for and cannot be told.
        seed: as ``run.seed``. augments: settings by which images of training rows differ from epoch to epoch.
    """

    sources: list[Source]
    format: str
    sections: Mapping[str, Section]
    max_seq_len: int
    tokenizer: Tokenizer | None
    encoder: Encoder | None
    vocabulary: int
    arguments: Sequence[str]
    unchecked: Sequence[str] = ()
    seed: int = 0
    augments: Sequence[str] = ()

    @property
    def check_command(self) -> str:
        """A command line that lists what is wrong with the rows."""
        return shlex.join(["ernie", "data", "check", *self.arguments])


def open_preview(arguments: Sequence[str], chosen: Mapping[str, Any], max_seq_len: int | None) -> Preview:
    """From the arguments and flags of a command.

    Raises:
        ErnieError: settings that are wrong, no file, no such model or tokenizer.
    """
    files, settings_file, overrides = split_files(arguments)
    if max_seq_len is not None:
        overrides = [*overrides, f"data.max_seq_len={max_seq_len}"]
    flags = {name: value for name, value in chosen.items() if value}
    alone = _tokenizer_directory(flags.get("model"))
    if alone is not None:
        del flags["model"]
    loaded = load_settings(settings_file, overrides, flags, complete=False)
    _refuse_unused(loaded, overrides)
    tokenizer, vocabulary = _tokenizer(loaded, alone)
    if tokenizer is not None and "method" not in loaded.plugins:
        loaded = load_settings(settings_file, overrides, {**flags, "method": DEFAULT_METHOD}, complete=False)
    settings = loaded.settings
    sources = [Source(path=file) for file in files] or [*settings.data.train, *settings.data.eval]
    if not sources:
        fix = "name files, or a settings file with data.train"
        raise UsageError("no data file is named", fix=fix, next="ernie data check --help")
    data, encoder = settings.data, None
    if tokenizer is not None:
        encoder = build_encoder(
            loaded.host, settings.method, tokenizer, data.max_seq_len, data.too_long, data.max_patches
        )
    pasted = (*arguments, *_typed({**chosen, "max-seq-len": max_seq_len}))
    unchecked = []
    if tokenizer is None and "method" in loaded.plugins:
        name = loaded.plugins["method"].name
        unchecked = [f"the rows are parsed alone: without --model it is not known which of them {name} trains on"]
    return Preview(
        sources,
        data.format,
        settings.formats,
        data.max_seq_len,
        tokenizer,
        encoder,
        vocabulary,
        pasted,
        unchecked,
        settings.run.seed,
        settings.model.augments() if "model" in loaded.plugins else (),
    )


def _typed(flags: Mapping[str, Any]) -> Iterator[str]:
    """Flags as they are typed."""
    for name, value in flags.items():
        for single in value if isinstance(value, list) else [value]:
            if single is not None:
                yield from (f"--{name}", str(single))


def _refuse_unused(loaded: LoadedSettings, overrides: Sequence[str]) -> None:
    """Settings of a model that nobody chose would change nothing."""
    unused = [o for o in overrides if o.startswith("model.") and "model" not in loaded.plugins]
    if unused:
        raise UsageError(
            "settings of the model need a model", found=" ".join(unused), fix="add --model with a model directory"
        )


def _tokenizer_directory(model: str | None) -> Path | None:
    """A directory with a tokenizer and no model."""
    directory = Path(model) if model else None
    if directory is None or (directory / "config.json").is_file() or not (directory / "tokenizer.model").is_file():
        return None
    return directory


def _tokenizer(loaded: LoadedSettings, alone: Path | None) -> tuple[Tokenizer | None, int]:
    """The tokenizer that a run would use, and the ids of its model; nothing where no directory is known."""
    if alone is not None:
        from erniecore_text import SentencePieceTokenizer

        return SentencePieceTokenizer.from_directory(alone), 0
    if "model" not in loaded.plugins:
        return None, 0
    model, hook = loaded.settings.model, loaded.host.hook
    directory = model.tokenizer or model.path
    if not directory:
        return None, 0
    tokenizer: Tokenizer = hook.ernie_build_tokenizer(config=model, directory=Path(directory))
    return tokenizer, int(hook.ernie_read_architecture(config=model).get("vocab_size", 0))
