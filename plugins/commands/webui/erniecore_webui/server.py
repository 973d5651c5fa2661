"""The process behind the page: the address, the threads behind it, signals. Nothing is lost when it is killed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erniecore_serve.http import listening, stop_asked
from erniecore_serve.keys import api_key, check_address

from erniecore.api import UsageError
from erniecore.api.command import show
from erniecore_webui.app import create_app
from erniecore_webui.site import Site

#: a browser may keep six connections, and pages stay open for days
_CONNECTIONS = 512
_HEADER_SECONDS = 30.0
_PLACES = 64


def serve(
    runs: Path, *, host: str, port: int, password_file: Path | None, names: Sequence[str] = (), places: Sequence[str] = (),
    models: Sequence[Path] | None = None,
) -> int:  # fmt: skip
    """Serve the page until a signal; returns the exit code.

    Raises:
        UsageError: an address that others can reach without a password file, a short password, places that are no numbers.
        EnvironmentFault: an address that cannot be listened on, a directory that cannot be written.
    """
    password = api_key(str(password_file)) if password_file else ""
    try:
        check_address(host, password)
    except UsageError:
        raise UsageError(
            "anybody who reaches this address could start commands", where="--host", found=host,
            expected="a loopback address, or --password-file FILE", fix="openssl rand -hex 24 > FILE",
        ) from None  # fmt: skip
    default, of_device = places_of(places)
    site = Site(runs, password=password, places=default, of_device=of_device, models=models)
    app = create_app(site)
    with listening(app, host, port, header_seconds=_HEADER_SECONDS, connections=_CONNECTIONS) as url:
        _, _, number = url.rpartition(":")
        site.admit(
            [url.removeprefix("http://"), f"localhost:{number}", *(f"{name}:{number}" for name in names), *names]
        )
        with stop_asked() as asked, site.threads_running():
            show(f"{url}/?token={site.token}" if not password else f"{url}/ asks for the password of {password_file}")
            show(f"runs in {site.root}; stop with Ctrl-C, runs go on")
            asked.wait()
            site.stopping.set()
    return 0


def places_of(given: Sequence[str]) -> tuple[int, dict[str, int]]:
    """``N`` for each device, and ``DEVICE=N`` for one: the former, and the latter by device. Raises ``UsageError``."""
    default, of_device = 1, {}
    for text in given:
        device, _, number = text.rpartition("=")
        if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= _PLACES) or text.startswith("="):
            raise UsageError("these are no places of a device", where="--places", found=text,
                             expected=f"N or DEVICE=N, from 1 to {_PLACES}")  # fmt: skip
        if device:
            of_device[device] = int(number)
        else:
            default = int(number)
    return default, of_device
