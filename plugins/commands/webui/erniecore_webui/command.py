"""``ernie web``: the command. What serves is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def web(
    runs: Annotated[Path, typer.Argument(metavar="[RUNS]", help="Where the runs are and new ones go.")] = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; another one than loopback needs --password-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 8765,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the password that browsers must send, 16 characters.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name under which browsers reach this machine.")
    ] = None,
    places: Annotated[
        list[str] | None,
        typer.Option(metavar="[DEVICE=]N", help="Queued runs that may go on at the same time on one device [1]."),
    ] = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Show models below it; may be repeated [the present directory]."),
    ] = None,
) -> int:
    """Watch, stop, resume and compare runs in a browser, until stopped. Runs live on without the page and this command."""
    from erniecore_webui.server import serve

    return serve(runs, host=host, port=port, password_file=password_file, names=allow_host or (), places=places or (),
                 models=models)  # fmt: skip
