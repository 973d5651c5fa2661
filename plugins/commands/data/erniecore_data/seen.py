"""Images and videos of samples, as the vision tower of a model sees them: what is known of each in words, and as PNG files, which
are made of the patches that the model would get.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from erniecore.api import UsageError, counted
from erniecore.api.data import Draw, MediaReader, SeenMedia
from erniecore.api.files import printable
from erniecore.api.method import Sample
from erniecore.api.model import Tokenizer

#: so many equal tokens in a row are shown as one with their number
_FOLDED = 4
_SHOWN = 60


class SeenImages:
    """What is said and written about the media of samples.

    Args:
        reader: of the encoder that made the samples; None: they have no media.
        folder: where files go; None: none are written. draw: with the random changes of this epoch of training.

    Raises:
        UsageError: ``folder`` holds something.
    """

    def __init__(self, reader: MediaReader | None, folder: Path | None, draw: Draw | None = None) -> None:
        if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            fix = "name a directory that does not exist yet, or an empty one"
            raise UsageError("files would be mixed up", where="--images", found=str(folder), fix=fix)
        self._reader, self._folder, self._draw, self._samples = reader, folder, draw, 0

    def of(self, sample: Sample) -> list[dict[str, Any]]:
        """JSON form of each, in order; its ``files`` are written now. Raises ``DataError`` for a file that has changed."""
        self._samples += 1
        if self._reader is None:
            return []
        numbers: dict[str, int] = {}
        found = []
        for text, changes in zip(sample.media, self._reader.changes(sample, self._draw), strict=True):
            seen = self._reader.seen(text)
            numbers[seen.kind] = numbers.get(seen.kind, 0) + 1
            name = f"{seen.kind}{numbers[seen.kind]}"
            files = [str(path) for path in self._written(sample, name, seen, text, changes)]
            drawn = {"changes": list(map(str, changes))} if self._draw is not None else {}
            found.append({**seen._asdict(), "source": _short(seen.source), **drawn, "files": files})
        return found

    def _written(self, sample: Sample, name: str, seen: SeenMedia, text: str, changes: Sequence[Any]) -> Iterator[Path]:
        """``1-line7-image1.png`` is of the first sample that is shown; frames of a video have their number and seconds."""
        if self._folder is None or self._reader is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        origin = sample.origin
        row = f"line{origin.line}" if origin.element is None else f"element{origin.element}"
        for i, png in enumerate(self._reader.frames(text, changes)):
            frame = f"-frame{i + 1:03d}-{seen.seconds[i]:.2f}s" if seen.seconds else ""
            path = self._folder / f"{self._samples}-{row}-{name}{frame}.png"
            path.write_bytes(png)
            yield path


def described(media: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each: what it is, in what size the model sees it, and what it costs."""
    for i, seen in enumerate(media):
        size, times = f"{seen['width']} x {seen['height']} pixels", seen["seconds"]
        if times:
            size = f"{counted(len(times), 'frame')} of {size} from {times[0]:.2f} to {times[-1]:.2f} s"
        cost = f"{counted(seen['tokens'], 'token')}, {counted(seen['patches'], 'patch')}"
        files = seen["files"]
        written = f" -> {files[0]}" + (f" … {Path(files[-1]).name}" if files[1:] else "") if files else ""
        drawn = f", {', '.join(seen['changes']) or 'unchanged'}" if "changes" in seen else ""
        yield f"{i + 1}. {seen['kind']} {seen['source']}: {size}, {cost}{drawn}{written}"


def folded(text: str, ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """``text`` of ``ids``, with stretches of one special token as that token and their number."""
    special = set(tokenizer.special_tokens.values())
    for token in sorted(special.intersection(ids)):
        name = tokenizer.decode([token], skip_special=False)
        pieces = re.split(f"((?:{re.escape(name)}){{{_FOLDED},}})", text)
        pieces[1::2] = [f"{name}×{len(stretch) // len(name)}" for stretch in pieces[1::2]]
        text = "".join(pieces)
    return text


def _short(source: str) -> str:
    """A data URL without its data; what a terminal would obey becomes visible."""
    source = printable(source)
    return source if len(source) <= _SHOWN or not source.startswith("data:") else f"{source[:_SHOWN]}…"
