"""How long a run that died waits before it starts again."""

import threading
from contextlib import ExitStack

import pytest

from erniecore.engine.preparation.rundir import in_use, locked, rank_lock
from erniecore.engine.processes.restarts import LONGEST_PAUSE, await_ranks, newest, pause_after
from erniecore.errors import EnvironmentFault


def test_pauses_grow_only_while_restarts_fail():
    assert [pause_after(n) for n in (0, 1, 2, 3, 30)] == [0.0, 1.0, 2.0, 4.0, LONGEST_PAUSE]


def test_a_new_checkpoint_is_getting_ahead(tmp_path):
    assert newest(tmp_path) == ""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "latest.json").write_text('{"step": 2}')
    assert newest(tmp_path) == '{"step": 2}'


def test_a_start_waits_for_ranks_of_an_earlier_one(tmp_path):
    ended, said = threading.Event(), []

    def old_rank():
        with locked(tmp_path, rank_lock(1)):
            started.set()
            ended.wait()

    started, thread = threading.Event(), threading.Thread(target=old_rank)
    thread.start()
    started.wait()
    assert not in_use(tmp_path)  # its command is gone: the same command may go on
    with pytest.raises(EnvironmentFault, match="ranks of an earlier start are still running") as caught:
        await_ranks(tmp_path, range(2), said.append, patience=0.0)
    assert "process " in caught.value.found
    waiting = threading.Timer(0.3, ended.set)
    waiting.start()
    await_ranks(tmp_path, range(2), said.append)
    assert ended.is_set()
    assert "waiting for 1 ranks of an earlier start" in said[-1]
    thread.join()
    await_ranks(tmp_path, range(2), said.append, patience=0.0)


@pytest.mark.parametrize(
    ("names", "used"),
    [
        (["lock-run", "lock-0"], True),
        (["lock", "lock-rank-0", "lock-0"], True),
        (["lock-0", "lock-1"], True),  # torchrun's
        (["lock-rank-0", "lock-0"], False),  # the launcher was killed
        ([], False),
    ],
)
def test_whether_a_command_works_on_a_run(tmp_path, names, used):
    with ExitStack() as locks:
        for name in names:
            locks.enter_context(locked(tmp_path, name))
        assert in_use(tmp_path) is used
