"""``ernie wan``: keys of sites, the coordinator, and what it knows. Imports no paddle; prints."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from erniecore_system.files import open_file, parse_json, read_object
from erniecore_system.units import printable

from erniecore.api import CheckpointError, UsageError
from erniecore.api.command import (
    NOTHING,
    Arguments,
    Chosen,
    JsonOption,
    MultiValueCommand,
    new_group,
    note,
    show,
    show_json,
    show_table,
    takes,
)

if TYPE_CHECKING:
    from erniecore_wan.server import CoordinatorServer

app = new_group("Train one model at several sites: make keys, coordinate the rounds, show their state.")

#: bytes of the events that are looked at
_LAST = 1 << 20
Key = Annotated[Path, typer.Option("--key", help="Private key; its certificate lies beside it.")]


@app.command()
def keys(
    name: Annotated[str, typer.Argument(help="Of the site or coordinator, e.g. `east`.")],
    out: Annotated[Path, typer.Option(help="Directory for NAME.key and NAME.pem.")] = Path("keys"),
    as_json: JsonOption = False,
) -> None:
    """Make a private key and its certificate. The key stays where it is; give the certificate to the others."""
    from erniecore_wan.keys import make_keys, pins

    key, certificate = make_keys(name, out)
    (fingerprint,) = pins([certificate])
    if as_json:
        show_json({"key": str(key), "certificate": str(certificate), "fingerprint": fingerprint})
    else:
        show(f"{key}   keep it here", f"{certificate}   give it to the others", f"SHA-256 {fingerprint}")


@app.command()
def serve(
    directory: Annotated[Path, typer.Argument(help="What the coordinator keeps: rounds, common weights, events.")],
    key: Key,
    site: Annotated[list[Path], typer.Option(help="Certificate of a site; once for each.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where sites connect; port 0: any free one.")],
    quorum: Annotated[int, typer.Option(min=1, help="Updates without which no round closes.")] = 1,
    limit: Annotated[float, typer.Option(min=0.1, help="Seconds that a round waits after its first update.")] = 600.0,
    start: Annotated[int, typer.Option(min=0, help="Sites that join before the first round closes; 0: all.")] = 0,
    keep: Annotated[int, typer.Option(min=1, help="Closed rounds that a site may come back to.")] = 64,
    until_done: Annotated[bool, typer.Option(help="End once all sites that were here have finished.")] = False,
) -> None:
    """Coordinate the rounds of a run until Ctrl-C. Started again on the same directory, it goes on where it was."""
    from erniecore_wan.coordinator import Coordinator
    from erniecore_wan.server import CoordinatorServer
    from erniecore_wan.sites import Life
    from erniecore_wan.store import Store

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError("this is no address", where="--listen", found=listen, next="--listen 0.0.0.0:7000")
    if quorum > len(site):
        raise UsageError("a quorum of more sites than there are", where="--quorum", found=f"{quorum} of {len(site)}")
    life = Life(quorum, limit, start or len(site))
    server = CoordinatorServer((host, int(port)), Coordinator(Store(directory, keep), life), key, site)
    address = f"{host}:{server.server_address[1]}"
    server.coordinator.store.emit("serving", address=address, sites=sorted(server.known.values()), quorum=quorum)
    show(f"coordinator of {len(site)} sites on {address}; quorum {quorum}, {limit:g} s a round; {directory}")
    _serve(server, until_done=until_done)


def _serve(server: CoordinatorServer, *, until_done: bool) -> None:
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    threads = [threading.Thread(target=job, daemon=True) for job in (server.serve_forever, server.tick)]
    for thread in threads:
        thread.start()
    while not over.wait(0.2) and not (until_done and server.coordinator.done):
        pass
    time.sleep(0.2)  # the last reply
    server.shutdown()
    note(f"the coordinator ends after {server.coordinator.round} rounds")


@app.command("plan", cls=MultiValueCommand)
@takes()
def plan(
    args: Arguments = None,
    chosen: Chosen = NOTHING,
    sites: Annotated[Path, typer.Option("--sites", metavar="FILE", help="YAML: sites, their links and speeds.")] = Path(
        "sites.yaml"
    ),
    parameters: Annotated[
        float,
        typer.Option(
            metavar="N", min=0, max=1e15, help="Exchanged, such as 1.3e9; without it, those that the run trains."
        ),
    ] = 0,
    step_seconds: Annotated[float, typer.Option(min=0, help="Of sites whose entry has none.")] = 0,
    overhead: Annotated[float, typer.Option(min=0.001, max=0.999, help="Share of the time for exchanges.")] = 0.1,
    cap: Annotated[int, typer.Option(min=1, help="Longest interval: beyond it the sites drift apart.")] = 500,
    as_json: JsonOption = False,
) -> None:
    """Bytes and time of a round, and the share of the time in which sites compute, by method; and what to choose.

    With the arguments of `ernie run` for the parameters that it trains, or with --parameters. The file has a mapping `sites`: of
    each its `up` and `down` in Mbit/s, and `delay` and `step_seconds` in seconds (of `ernie plan`, or of a run).
    """
    from erniecore_wan.plan_command import show_wan_plan

    show_wan_plan(args, chosen, sites, int(parameters), step_seconds, overhead, cap, as_json)


@app.command()
def status(
    directory: Annotated[Path | None, typer.Argument(help="Directory of a coordinator on this machine.")] = None,
    coordinator: Annotated[str, typer.Option(metavar="HOST:PORT", help="Ask this one instead.")] = "",
    key: Annotated[Path | None, typer.Option(help="Private key of a site that it knows.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="Certificate of the coordinator.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Rounds, sites, bytes and lag, and the last decisions."""
    if (directory is None) == (not coordinator):
        raise UsageError("name a directory, or --coordinator with --key and --certificate", where="ernie wan status")
    if directory is not None:
        found = _kept(directory)
    else:
        from erniecore_wan.client import CoordinatorClient

        if key is None or certificate is None:
            raise UsageError("the coordinator answers its sites alone: add --key and --certificate", where=coordinator)
        client = CoordinatorClient(coordinator, key, certificate, timeout=10.0)
        found = {**client.status(), "events": []}
        client.close()
    if as_json:
        show_json(found)
        return
    show(f"round {found['round']}")
    columns = ("name", "state", "round", "samples", "up", "down", "lag")
    show_table(columns, [[_text(site[column]) for column in columns] for site in found["sites"]])
    show(*(f"{_text(event['event']):<10} {_line(event)}" for event in found["events"]))


def _kept(directory: Path) -> dict[str, Any]:
    """What a coordinator has written into its directory."""
    from erniecore_wan.sites import Status
    from erniecore_wan.store import EVENTS, STATE

    try:
        with open_file(directory / EVENTS) as file:
            file.seek(max(0, file.seek(0, 2) - _LAST))
            lines = file.read(_LAST).splitlines()[-20:]
    except OSError as error:
        found = str(error.strerror)
        raise UsageError(
            "no coordinator was here", where=str(directory), found=found, next="ernie wan serve --help"
        ) from None
    path = directory / STATE
    state: dict[str, Any] = {"round": 0, "sites": {}}
    if path.exists():
        state = read_object(path, CheckpointError, fix="the coordinator writes it again in its next round")
    try:
        sites = [{**asdict(Status(**values)), "name": name} for name, values in sorted(state["sites"].items())]
        return {
            "round": int(state["round"]),
            "sites": sites,
            "events": [event for event in map(_event, lines) if event],
        }
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        found = f"{type(error).__name__}: {error}"
        raise CheckpointError("the state of the coordinator cannot be read", where=str(path), found=found) from error


def _event(line: bytes) -> dict[str, Any] | None:
    """An event; ``None`` for half a line."""
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))


def _line(event: dict[str, Any]) -> str:
    left_out = {"event", "time", "terms", "anchor", "digest", "digests", "plan"}
    return "  ".join(
        f"{_text(name)} {_text(value)}" for name, value in event.items() if name not in left_out and value != {}
    )
