"""How long a run that died waits before it starts again."""

from erniecore.engine.processes.restarts import LONGEST_PAUSE, newest, pause_after


def test_pauses_grow_only_while_restarts_fail():
    assert [pause_after(n) for n in (0, 1, 2, 3, 30)] == [0.0, 1.0, 2.0, 4.0, LONGEST_PAUSE]


def test_a_new_checkpoint_is_getting_ahead(tmp_path):
    assert newest(tmp_path) == ""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "latest.json").write_text('{"step": 2}')
    assert newest(tmp_path) == '{"step": 2}'
