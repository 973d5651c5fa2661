"""``ernie serve``: a model answers over the network. Serving is what the server plugin does; this finds it, its settings
and the model. Imports nothing heavy itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from erniecore.api import PluginError, UsageError, install_command
from erniecore.api.command import note, opens_models, plugin_settings

_Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the server, e.g. port=8080.", show_default=False),
]
_Model = Annotated[Path | None, typer.Option("--model", metavar="DIR", help="Model directory, or a run that has one.")]
_Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Server plugin [openai, or the only one installed].")
]
_Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter", metavar="[NAME=]DIR", help="Saved adapter that is a model of its own beside the base; repeatable."
    ),
]

#: the server where none is named: it runs the model itself, so it needs nothing else
DEFAULT = "openai"


@opens_models
def serve(args: _Overrides = None, model: _Model = None, backend: _Backend = None, adapter: _Adapters = None) -> int:
    """Serve a model until stopped, by OpenAI's HTTP interface unless --backend names another server.

    `ernie plugins --kind server` lists servers, `ernie plugins NAME` their settings; the exit code is the server's.
    """
    from erniecore.api.installation import assemble, entries, load

    if backend is None:
        backend = default_server([entry.name for entry in entries("server")])
    plugin = load("server", backend)
    if adapter and "adapters" not in plugin.Config.model_fields:
        raise UsageError(
            "this server takes no adapters", where="--adapter", found=backend, fix="merge them: ernie merge"
        )
    config = plugin_settings(plugin.Config, [*(args or ()), *_adapter_settings(adapter or ())])
    if model is None:
        raise _no_model(backend)
    code = assemble({"server": plugin}).call(plugin, "ernie_serve", config=config, directory=_directory(model))
    if not isinstance(code, int):
        raise PluginError(f"ernie_serve of {plugin.name} returned {code!r}", expected="an exit code")
    return code


def _adapter_settings(options: Sequence[str]) -> list[str]:
    """``adapters.NAME=DIR`` for each option. Raises ``UsageError`` for a name that no setting can have, or that comes twice."""
    from erniecore.api.run import named_directory

    found: dict[str, Path] = {}
    for option in options:
        name, directory = named_directory(option)
        if not re.fullmatch(r"[\w-]+", name) or name in found:
            raise UsageError(
                "two adapters have this name" if name in found else "no name for an adapter", where="--adapter", found=name,
                expected="letters, digits, _ and -, another one for each", fix="name it: --adapter NAME=DIR",
            )  # fmt: skip
        found[name] = directory.absolute()
    return [f"adapters.{name}={directory}" for name, directory in found.items()]


def default_server(installed: list[str]) -> str:
    """The server where none is named. Raises ``UsageError`` for none, and for several others."""
    if len(installed) == 1 or DEFAULT in installed:
        return DEFAULT if DEFAULT in installed else installed[0]
    raise UsageError(
        "no server is named",
        where="--backend",
        expected="one of " + ", ".join(installed) if installed else "an installed server plugin; there is none",
        fix="" if installed else install_command("erniecore-openai"),
        next="ernie serve --help" if installed else "ernie new plugin --kind server --name NAME",
    )


def _no_model(backend: str | None) -> UsageError:
    """The error; its next command serves the model of the newest run in this directory."""
    found = max(Path("runs").glob("*/model"), key=lambda path: path.stat().st_mtime, default=None)
    return UsageError(
        "no model to serve",
        where="--model",
        expected="a model directory, or the directory of a run",
        next="ernie serve --help" if found is None else f"ernie serve --backend {backend} --model {found}",
    )


def _directory(model: Path) -> Path:
    """The model directory that ``model`` means. Raises ``UsageError`` for a checkpoint, and where there is no model."""
    from erniecore.api.run import locate

    located = locate(model)
    if located.is_checkpoint:
        raise UsageError(
            "a server needs a model directory, this is a checkpoint",
            where=str(located.path),
            fix="export it, and serve what was exported",
            next=shlex.join(["ernie", "export", str(located.path), "--out", "exported"]),
        )
    for text in located.notes:
        note(f"note: {text}")
    return located.path
