"""FastDeploy as a child process: checked before, watched until it is healthy and while it runs, stopped with all its processes.

Its output goes to the standard error stream line by line, and into the message when it ends by itself. FastDeploy's workers
write logs of their own, to ``$FD_LOG_DIR``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from erniecore_model_check.rules import check_directory
from erniecore_serve.keys import api_key, check_address
from erniecore_serve.stopping import on_stop
from erniecore_text.proof import Proof
from erniecore_text.proof.requests import as_request

from erniecore.api import CheckpointError, EnvironmentFault, UsageError
from erniecore.api.command import note, open_tokenizer, show
from erniecore.api.files import read_object
from erniecore.api.launcher import parent_variables
from erniecore_fastdeploy_server.command_line import command_line
from erniecore_fastdeploy_server.config import FastDeployConfig
from erniecore_fastdeploy_server.probing import Address, is_free, is_healthy, probe, prompt_tokens

#: seconds between two looks at ``/health``
LOOK = 1.0
#: variable by which the processes of one server are known
MARK = "ERNIE_SERVER_MARK"
#: prompts that FastDeploy is asked for
PROMPTS = 8
#: last lines of output that an error shows
LINES = 20


def serve(settings: FastDeployConfig, directory: Path) -> int:
    """Serve ``directory`` until a signal; returns 0. Raises what ``FastDeployServer.ernie_serve`` says."""
    check_model(directory)
    key = api_key(settings.key_file)
    check_address(settings.host, key)
    config = read_object(directory / "config.json", CheckpointError)
    template = directory / "chat_template.jinja"
    written = template.read_text(encoding="utf-8") if template.is_file() else ""
    words = command_line(settings, directory, config, written)
    if settings.dry_run:
        show(shlex.join(words))
        return 0
    check_ports(settings)
    address = Address(settings.host, settings.port, key)
    asked = Asked()
    with on_stop(asked.again), proof_of(directory) as proof, Child(words, key) as child:
        proof.check(settings.prompt_differences)
        if not _wait_until_healthy(child, address, asked, settings.start_seconds):
            child.stop(settings.stop_seconds)
            return 0
        name = probe(address)
        compare_prompts(proof, address, name)
        for line in proof.finish(settings.prompt_differences):
            note(line)
        show(f"{name} at {address.url}/v1; stop with Ctrl-C")
        _watch(child, address, asked, settings.hang_seconds)
        note("finishing what runs; a second signal ends at once")
        child.stop(settings.stop_seconds, asked)
    return 0


def check_model(directory: Path) -> None:
    """Raise ``CheckpointError`` for a directory that FastDeploy would not read, with the rules that it breaks."""
    broken = check_directory(directory, "fastdeploy")
    if broken:
        lines = "; ".join(map(str, broken[:3]))
        more = f"; {len(broken) - 3} more" if len(broken) > 3 else ""
        raise CheckpointError(
            f"FastDeploy does not read this directory: {lines}{more}",
            where=str(directory),
            fix="write it for FastDeploy",
            next=shlex.join(["ernie", "export", str(directory), "--to", "fastdeploy", "--out", "served"]),
            code="ERN-K030",
        )


def proof_of(directory: Path) -> Proof:
    """Prompts of rows in training and in transformers, which takes its time while FastDeploy starts."""
    return Proof(directory, open_tokenizer(directory)[0], option="prompt_differences=warn")


def compare_prompts(proof: Proof, address: Address, name: str) -> None:
    """Ask FastDeploy for the tokens of the first prompts, as clients send them. What it does not tell is a note."""
    found: list[Sequence[int]] = []
    for prompt in proof.prompts[:PROMPTS]:
        try:
            asked = as_request(prompt.messages, prompt.tools, prompt.thinking)
            ids = prompt_tokens(address, name, asked)
        except (UsageError, EnvironmentFault) as error:
            proof.report.notes.append(f"FastDeploy was not asked for all of them: {error}")
            break
        found.append(ids)
    if found:
        proof.add("FastDeploy", found)


def check_ports(settings: FastDeployConfig) -> None:
    """Raise ``UsageError`` for a port that is named twice, and ``EnvironmentFault`` for one that is taken: FastDeploy finds that
    out in a worker, after it has read the model."""
    ports = {name: getattr(settings, name) for name in ("port", "metrics_port", "queue_port", "cache_port")}
    for name, port in ports.items():
        same = [other for other, number in ports.items() if number == port and other != name]
        if same:
            raise UsageError("two of the server's ports are the same", where=f"{name}, {same[0]}", found=str(port))
        if not is_free(settings.host, port):
            raise EnvironmentFault(
                "cannot listen on this port", where=name, found=str(port), fix=f"{name}=… with a port that is free"
            )


class Child:
    """FastDeploy and its workers: a process group of its own, that ends with this process. Workers begin sessions of their own,
    out of reach of the group's signals: they are known by a variable in their environment (Linux).

    Raises:
        EnvironmentFault: the program is not there.
    """

    def __init__(self, words: list[str], key: str) -> None:
        if shutil.which(words[0]) is None:
            raise _absent(words[0])
        self.words, self.last = words, deque[str](maxlen=LINES)
        self._mark = uuid4().hex
        environment = {**os.environ, **parent_variables(), "PYTHONUNBUFFERED": "1", MARK: self._mark} | (
            {"FD_API_KEY": key} if key else {}
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "erniecore_fastdeploy_server.following", *words],
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._output = self.process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(signal.SIGKILL)
        self.process.wait()
        for _again in range(100):  # again, as long as one of them could have started another
            left = _marked(self._mark)
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.05)
        self._reader.join(5.0)
        if not self._reader.is_alive():  # else a process that left the group has the other end
            self._output.close()

    def check(self) -> None:
        """Raise ``EnvironmentFault`` if it has ended, with what it said last."""
        code = self.process.poll()
        if code is None:
            return
        self._reader.join(1.0)
        said = "\n".join(self.last)
        if "No module named" in said and "fastdeploy" in said:
            raise _absent(self.words[0])
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise EnvironmentFault(
            f"FastDeploy ended by itself; its last lines:\n{said}", where=shlex.join(self.words), found=how,
            fix="the logs of its workers are in $FD_LOG_DIR, by default log/",
        )  # fmt: skip

    def stop(self, seconds: float, asked: Asked | None = None) -> None:
        """SIGTERM to all its processes; SIGKILL after so many seconds, or at a second signal."""
        self._end(signal.SIGTERM)
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until and not (asked and asked.times > 1):
            time.sleep(0.05)
        if self.process.poll() is None:
            note(f"FastDeploy did not end within {seconds:g} s and is killed")

    def _end(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _read(self) -> None:
        for line in self._output:
            text = line.decode(errors="replace").rstrip()
            self.last.append(text)
            note(text)


def _marked(mark: str) -> list[int]:
    """Ids of the processes whose environment has this mark; none where there is no ``/proc``. One that has ended has none."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # somebody else's, or gone
            if wanted in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def _absent(program: str) -> EnvironmentFault:
    return EnvironmentFault(
        "FastDeploy is not installed there",
        where="command",
        found=program,
        expected="an interpreter whose environment has FastDeploy: it needs Linux, its own Paddle and a supported accelerator",
        fix="command='/path/to/its/python -m fastdeploy.entrypoints.openai.api_server'",
    )


class Asked:
    """How often a signal has asked to stop."""

    times = 0

    def again(self, number: int) -> None:
        """One more signal, whichever."""
        self.times += 1


def _wait_until_healthy(child: Child, address: Address, asked: Asked, seconds: float) -> bool:
    """False if a signal came first. Raises ``EnvironmentFault`` when it takes too long, or the server ends."""
    until = time.monotonic() + seconds
    while not asked.times:
        child.check()
        if is_healthy(address):
            return True
        if time.monotonic() > until:
            raise EnvironmentFault(
                "the server is not healthy in time", where=address.url, found=f"{seconds:g} s",
                fix="start_seconds=… with more, or look into $FD_LOG_DIR",
            )  # fmt: skip
        time.sleep(min(LOOK, 0.2))
    return False


def _watch(child: Child, address: Address, asked: Asked, seconds: float) -> None:
    """Until a signal. Raises ``EnvironmentFault`` when the server ends, or is silent for so many seconds."""
    heard = time.monotonic()
    while not asked.times:
        child.check()
        if is_healthy(address, min(seconds, 5.0)):
            heard = time.monotonic()
        elif time.monotonic() - heard > seconds:
            raise EnvironmentFault(
                "the server hangs: its health is silent", where=f"{address.url}/health", found=f"{seconds:g} s"
            )
        time.sleep(LOOK)
