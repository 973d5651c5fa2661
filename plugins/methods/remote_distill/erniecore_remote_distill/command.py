"""``ernie wan teach``: a model tells students at other sites its likeliest tokens. Imports paddle when it is called."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from erniecore_generation.options import Device

from erniecore.api import UsageError
from erniecore.api.command import note, opens_models, show

if TYPE_CHECKING:
    from erniecore_remote_distill.service import TeacherService

_Directory = Annotated[Path, typer.Argument(help="What the teacher keeps: its events.")]
_Model = Annotated[
    Path, typer.Option("--model", metavar="DIR", help="Model directory of the teacher, or a run that has one.")
]
_Key = Annotated[Path, typer.Option("--key", help="Private key of the teacher; its certificate lies beside it.")]
_Student = Annotated[list[Path], typer.Option("--student", help="Certificate of a student's site; once for each.")]
_Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where students connect; port 0: any free one.")]
_TopK = Annotated[int, typer.Option("--top-k", min=1, help="Most tokens of a position that leave this site.")]
_Longest = Annotated[int, typer.Option("--max-seq-len", min=2, help="Most tokens of a sample.")]
_Dtype = Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Precision of the weights in memory.")]
_UntilDone = Annotated[bool, typer.Option(help="End once all students that were here have finished.")]


@opens_models
def teach(
    directory: _Directory,
    model: _Model,
    key: _Key,
    student: _Student,
    listen: _Listen,
    top_k: _TopK = 128,
    max_seq_len: _Longest = 131072,
    dtype: _Dtype = "float32",
    until_done: _UntilDone = False,
    device: Device = "cpu",
) -> None:
    """Tell students at other sites (`--method remote-distill`) a model's likeliest tokens, until Ctrl-C.

    It has no state that a student needs: started again with the same model, it goes on. Weights, data and keys stay here;
    of each position the log-probabilities of at most --top-k tokens leave.
    """
    from erniecore_remote_distill.teacher_server import TeacherServer

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError("this is no address", where="--listen", found=listen, next="--listen 0.0.0.0:7000")
    service = _service(directory, model, top_k, max_seq_len, dtype, device)
    server = TeacherServer((host, int(port)), service, key, student)
    address = f"{host}:{server.server_address[1]}"
    service.emit("serving", address=address, sites=sorted(server.known.values()))
    show(f"teacher of {len(student)} sites on {address}; at most {top_k} tokens a position; {directory}")
    show(f"fingerprint {service.facts.fingerprint}")
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not over.is_set() and not (until_done and service.done):
        service.work(0.2)
    time.sleep(0.2)  # the last reply
    server.shutdown()
    note(f"the teacher ends after {sum(one.questions for one in service.students.values())} questions")


def _service(directory: Path, path: Path, top_k: int, longest: int, dtype: str, device: str) -> TeacherService:
    """The teacher that a model directory is. Raises ``UsageError`` for what is none."""
    from erniecore_distill.opening import fingerprint, tokenizer_digest, vocabulary

    from erniecore.api.run import locate, open_model
    from erniecore_remote_distill.answering import Answering
    from erniecore_remote_distill.service import Facts, TeacherService

    located = locate(path)
    if located.is_checkpoint or located.adapter is not None:
        raise UsageError(
            "a teacher is a model directory",
            where=str(path),
            fix="export it, or merge its adapter: ernie export, ernie merge",
        )
    bundle = open_model(path, dtype=dtype, device=device)
    for parameter in bundle.model.parameters():
        parameter.stop_gradient = True
    if bundle.tokenizer is None:
        raise UsageError("this model has no tokenizer", where=str(path), fix="add its tokenizer files")
    size = vocabulary(bundle.model)
    if top_k >= size:
        raise UsageError(
            "more tokens than there are", where="--top-k", found=f"{top_k} of {size}", fix=f"at most {size - 1}"
        )
    facts = Facts(fingerprint(located.path), tokenizer_digest(bundle.tokenizer), size, dtype, top_k, longest)
    return TeacherService(directory, facts, Answering(bundle.model))
