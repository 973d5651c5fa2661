"""Several processes for a test, on the CPU over gloo: each calls one function with its own ``Cluster`` and returns JSON.
One launch costs an import of paddle per process, so let it do many things.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from erniecore.api.launcher import Cluster, free_port, parent_variables
from erniecore.api.testing import paddle_variables
from erniecore_conformance.expect import CheckFailed

#: seconds after which a launch counts as hanging
LIMIT = 300.0


class Started(Protocol):
    """What a launch needs of a process that was started; ``subprocess.Popen`` has it."""

    def poll(self) -> int | None:
        """Its status, or ``None`` while it runs."""

    def kill(self) -> None:
        """End it at once, whatever it does."""

    def wait(self) -> int:
        """Its status, once it has ended."""


def fresh(code: str, argument: str, environ: Mapping[str, str], output: Path) -> Started:
    """``python -c CODE ARGUMENT``, whose output goes to a file."""
    with output.open("wb") as file:
        command, follows = [sys.executable, "-c", code, argument], {**environ, **parent_variables()}
        return subprocess.Popen(command, env=follows, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


#: How the processes of a launch on the CPU start. A test suite may put forks of a process here that has imported paddle.
start: Callable[[str, str, Mapping[str, str], Path], Started] = fresh


def on_ranks(
    count: int, target: str, *arguments: Any, limit: float = LIMIT, threads: int = 1, device: str = "cpu"
) -> list[Any]:
    """Call ``target`` (``package.module:function`` or ``file.py:function``) with ``(cluster, *arguments)`` in ``count``
    processes.

    Args:
        arguments: JSON values. device: name of the plugin whose device each opens, one accelerator per process.
        threads: of each process.

    Returns:
        What each returned, in the order of ranks.

    Raises:
        CheckFailed: one ended with an error, or not within ``limit``; the text has the end of its output. The others
            are ended too.
    """
    master = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        processes: list[Started] = []
        for rank in range(count):
            cluster = Cluster(rank=rank, world_size=count, local_rank=rank, master=master)
            request = {
                "target": target,
                "arguments": arguments,
                "device": device,
                "answer": str(place / f"{rank}.json"),
            }
            request |= {"path": [p for p in sys.path if p]}
            environ = {**os.environ, **paddle_variables(cluster), "OMP_NUM_THREADS": str(threads)}
            begin = start if device == "cpu" else fresh
            processes.append(begin(_START, json.dumps(request), environ, place / f"{rank}.out"))
        try:
            _wait(processes, place, limit)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [json.loads((place / f"{rank}.json").read_text()) for rank in range(count)]


def _wait(processes: list[Started], place: Path, limit: float) -> None:
    end = time.monotonic() + limit
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed or time.monotonic() > end:
            break
        time.sleep(0.05)
    for rank, process in enumerate(processes):
        if status := process.poll():
            raise CheckFailed(f"rank {rank} ended with status {status}: {_tail(place / f'{rank}.out')}")
    late = [str(rank) for rank, process in enumerate(processes) if process.poll() is None]
    if late:
        raise CheckFailed(f"not ended within {limit:.0f} s: rank {', '.join(late)}")


def _tail(path: Path) -> str:
    return path.read_text(errors="replace").strip()[-1500:]


def answer(request: Mapping[str, Any]) -> None:
    """The other side: open the device, call the target, leave what it returned."""
    from erniecore.api.testing import apply_environment, load, read_cluster

    cluster = read_cluster(os.environ)
    plugin: Any = load("device", request["device"])
    device = plugin.ernie_open_device(config=plugin.Config(), cluster=cluster)
    apply_environment(device.environment())
    device.open()
    result = _function(request["target"])(cluster, *request["arguments"])
    Path(request["answer"]).write_text(json.dumps(result))


def _function(target: str) -> Any:
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(Path(place).stem, place)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)
    from erniecore_conformance.subjects import resolve

    return resolve(target)


# the path comes first: what is under test need not be installed, only importable
_START = (
    "import json, sys; request = json.loads(sys.argv[1]); sys.path[:] = request['path']; "
    "from erniecore.api.launcher import follow_parent; follow_parent(); "
    "from erniecore_conformance.processes import answer; answer(request)"
)
