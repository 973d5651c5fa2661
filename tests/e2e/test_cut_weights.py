"""Weight files that are truncated while a run has them mapped: where a missing page is touched there is no exception, only
SIGBUS. Real files, really truncated, in processes of their own.
"""

import shutil

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
