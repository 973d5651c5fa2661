"""Hooks of readers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from io import BufferedIOBase

    from erniecore.data.opening import DataFile, RawRow


class ReaderHooks:
    """A reader implements the hook of its base class; one of a hub those of models too. It is found by its name alone: the
    ending of a file, or the scheme of a URL. No paddle."""

    @hookspec(firstresult=True)
    def ernie_read_rows(self, file: DataFile) -> Iterator[RawRow]:
        """The rows of a file in order, streaming: (position, JSON text of the row, or the ``RowError`` that says why it cannot
        be had). A position is a line, or a number counted from 1. Of a ``RowReaderPlugin``; called once per pass over a file
        that exists and is not empty. Raises ``DataError`` for what is wrong with the file as a whole, also in between.

        Example::

            @hookimpl
            def ernie_read_rows(self, file):
                with file.open() as stream:
                    for number, line in enumerate(stream, 1):
                        yield number, json.dumps({"text": line.decode()}).encode()
        """

    @hookspec(firstresult=True)
    def ernie_decompress(self, stream: IO[bytes]) -> BufferedIOBase:
        """The uncompressed bytes of a compressed stream, which the caller closes. Of a ``DecompressorPlugin``; once per pass
        over a file. How much it may grow is limited by the caller; a stream that asks for more memory than a decoder should
        take is a ``MemoryError``.

        Example::

            @hookimpl
            def ernie_decompress(self, stream):
                return bz2.BZ2File(stream)
        """

    @hookspec(firstresult=True)
    def ernie_fetch_file(self, url: str) -> Path:
        """The file behind a URL as one that can be read here, such as a local copy that is kept. Of a ``SchemePlugin``; once per
        source and process. The result has the endings of the URL. Raises ``DataError``.

        Example::

            @hookimpl
            def ernie_fetch_file(self, url):
                return copy_once(url, Path.home() / ".cache" / "mypackage")
        """

    @hookspec(firstresult=True)
    def ernie_pin_revision(self, name: str, model: bool) -> str:
        """The name of a model or a data set on a hub, with the commit that its revision stands for now. Of a ``HubPlugin``; once
        per name and process, so a name that was fetched keeps its commit until the user asks for a newer one. Raises
        ``UsageError``.

        Example::

            @hookimpl
            def ernie_pin_revision(self, name, model):
                return f"{name.partition('@')[0]}@{commit_of(name)}"
        """

    @hookspec(firstresult=True)
    def ernie_pull_model(self, name: str, weights: bool) -> Path:
        """The directory with config.json, tokenizer and safetensors of a pinned model; no links, no code. Of a ``HubPlugin``.
        What is here is not fetched again. Raises ``UsageError``.

        Args:
            weights: whether the safetensors are wanted; settings and plans need what describes the model alone. The directory
                is the same.

        Example::

            @hookimpl
            def ernie_pull_model(self, name, weights):
                return download(name, endings=(".json", ".model", *([".safetensors"] if weights else [])))
        """

    @hookspec(firstresult=True)
    def ernie_push_model(self, name: str, directory: Path) -> str:
        """Upload the files of a model directory as one commit; the result is the name with that commit. Of a ``HubPlugin``.
        Raises ``UsageError``.

        Example::

            @hookimpl
            def ernie_push_model(self, name, directory):
                return f"{name}@{upload(directory, name)}"
        """
