"""Weight files that are truncated while a run has them mapped: where a missing page is touched there is no exception, only
SIGBUS. Real files, really truncated, in processes of their own.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from http.client import RemoteDisconnected

import pytest
from erniecore_model_init.new_model import init_model

from erniecore.errors import Exit

#: a callback that truncates the base of the run before a step; the rank that does it then touches what is gone
CUT = """
import os
from pathlib import Path
from erniecore.api import Plugin, hookimpl

class Cut(Plugin):
    kind, name, summary = "callback", "cut", "truncates the base of the run"

    @hookimpl
    def ernie_step_start(self, run, step):
        if step == 3 and run.ranks.rank == int(os.environ["CUT_RANK"]):
            os.truncate(os.environ["CUT_FILE"], int(os.environ["CUT_SIZE"]))

plugin = Cut()
"""
SIZE = "hidden_size=64,intermediate_size=128,num_hidden_layers=2"


@pytest.fixture(scope="module")
def base(home, tmp_path_factory):
    """A model in bfloat16, which the quantizer bf16 leaves in its file."""
    return init_model("ernie45", SIZE, home / "tok", tmp_path_factory.mktemp("base") / "m", dtype="bfloat16").path


def cut_run(run_ernie, runner, base, size, rank=0, **changes):
    """How a run ends whose base has only ``size`` bytes from its third step on: the outcome and the file."""
    copy = shutil.copytree(base, runner.directory / "base")
    (runner.directory / "cut.py").write_text(CUT)
    words = runner.words(model__path=copy, adapter__name="lora", quantizer__name="bf16", **changes)
    file = copy / "model.safetensors"
    environ = {"CUT_FILE": str(file), "CUT_SIZE": str(size), "CUT_RANK": str(rank)}
    environ["XDG_CACHE_HOME"] = str(runner.directory / "cache")
    words = ["run", *words, "callbacks=[events,cut]", "--plugin", "cut.py"]
    return run_ernie(*words, env=environ, cwd=runner.directory), file


@pytest.mark.parametrize("left", [20_000, -1], ids=["pages", "one byte"])
def test_a_base_that_is_truncated_while_it_is_trained_upon(run_ernie, runner, refused, base, left):
    """Pages that are gone end the process; a byte within the last page reads as zero, and is noticed after the step."""
    whole = (base / "model.safetensors").stat().st_size
    outcome, file = cut_run(run_ernie, runner, base, left % whole)
    told = f"{file}: ", f"{left % whole} bytes", "the file was truncated while it was in use"
    refused(outcome, Exit.CHECKPOINT, "ERN-K002", *told, remedy="put the file back")
    assert runner.curve().keys() <= {1, 2, 3}


@pytest.mark.multiproc
def test_a_rank_whose_base_is_truncated_says_so_for_all(run_ernie, runner, refused, base):
    outcome, file = cut_run(run_ernie, runner, base, 20_000, 1, parallel__name="hybrid", parallel__data=2)
    refused(outcome, Exit.CHECKPOINT, "ERN-K002", f"{file}: ", "(rank ", "20000 bytes", remedy="put the file back")


def test_with_the_file_as_it_was_the_run_goes_on(run_ernie, runner, base):
    """The end of the process left nothing behind that the same command trips over."""
    outcome, file = cut_run(run_ernie, runner, base, 20_000, checkpoint__every=2)
    assert outcome.code == Exit.CHECKPOINT
    shutil.copy2(base / file.name, file)
    again = ["run", *runner.words(model__path=file.parent, adapter__name="lora", quantizer__name="bf16")]
    done = run_ernie(*again, "checkpoint.every=2", "callbacks=[events]", cwd=runner.directory)
    assert done.code == Exit.OK, done.err
    assert max(runner.curve()) == 8


def complete(url):
    """A completion of three tokens."""
    body = json.dumps({"prompt": "a", "max_tokens": 3, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.loads(response.read())["choices"]


def test_a_packed_model_that_is_truncated_while_it_is_served(ernie, base, tmp_path):
    """The request at hand gets no completion, and the process ends as a run does."""
    assert ernie("quantize", base, "--to", "wint8", "--out", tmp_path / "packed").code == 0
    (file,) = (tmp_path / "packed").glob("*.safetensors")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "erniecore", "serve", "--model", file.parent, f"port={port}"]
    environ = {**{k: v for k, v in os.environ.items() if not k.startswith("ERNIE_")}, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            url = re.search(r"http://\S+/v1", process.stdout.readline())[0]
            assert complete(url)
            os.truncate(file, 20_000)
            with pytest.raises(RemoteDisconnected):
                complete(url)
            told = process.communicate()[1]
        finally:
            process.kill()
    assert process.returncode == Exit.CHECKPOINT, told
    for text in (
        "ERN-K002",
        f"{file}: ",
        "20000 bytes",
        "the file was truncated while it was in use",
        "put the file back",
    ):
        assert text in told, told
