"""``erniecore.Trainer`` in this process: what it gives back, what a stop leaves, and that of a run nothing stays but files."""

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections import Counter

import pytest
from erniecore_notebook import display, page
from erniecore_notebook.page import Heard

import erniecore
from erniecore.api import ConfigError, UsageError, hookimpl
from erniecore.errors import Preempted


class Stop:
    """Presses Ctrl-C in one step, once or twice."""

    def __init__(self, step, presses=1):
        self.step, self.presses = step, presses

    @hookimpl
    def ernie_step_start(self, run, step):
        for _ in range(self.presses if step == self.step else 0):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def settings(talker, tmp_path):
    """Six steps with an evaluation after each third."""
    return {
        "model": {"path": talker / "model"},
        "method": "sft",
        "data": {"train": [talker / "rows.jsonl"], "eval": str(talker / "rows.jsonl"), "max_seq_len": 96},
        "train": {"max_steps": 6, "batch_size": 2, "learning_rate": 1e-3},
        "eval": {"every": 3},
        "run": {"out": tmp_path / "it's one"},
    }


def tensor_bytes():
    """Bytes that paddle's tensors have in this process."""
    import paddle

    gc.collect()
    return paddle.base.core.host_memory_stat_current_value("Allocated", 0)


def surroundings():
    """What a run could leave behind in its process; not what tests before left to the garbage collector."""
    gc.collect()
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return {
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "environment": dict(os.environ),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(os.readlink(link) for link in links if os.path.exists(link)),
        "logging": [list(logging.getLogger(name).handlers) for name in ("", "erniecore")],
        "path": list(sys.path),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "warnings": list(warnings.filters),
    }


def test_a_run_is_watched_and_used(settings, talker, capsys):
    trainer = erniecore.Trainer(settings, console="lines")
    with pytest.raises(UsageError, match="nothing was trained"):
        trainer.history  # noqa: B018
    assert trainer.train() == "finished"
    assert "step   6/6" in capsys.readouterr().out
    history = trainer.history
    assert history["step"] == [1, 2, 3, 4, 5, 6]
    assert history["eval/step"] == [3, 6]
    assert len(history["loss"]) == len(history["lr"]) == 6
    assert history["loss"][-1] < history["loss"][0]
    assert len(history["eval/loss"]) == 2
    said = trainer.generate("copy a", max_new_tokens=5)
    assert said == trainer.generate([{"role": "user", "content": "copy a"}], max_new_tokens=5) != ""
    assert not trainer.model.training
    assert (trainer.export(talker / "exported") / "model.safetensors").is_file()


def test_a_stop_saves_and_the_next_call_goes_on(settings, capsys):
    whole = erniecore.Trainer(settings, ["run.out=whole"], console="none")
    settings["run"]["name"] = "stopped"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(settings["run"]["out"].parent)
        assert whole.train() == "finished"
        trainer = erniecore.Trainer(settings, listeners=[Stop(4)], console="lines")
        assert trainer.train() == "preempted"
        assert "train() goes on from there" in capsys.readouterr().out
        assert trainer.history["step"] == [1, 2, 3, 4]
        trainer.listeners = (Stop(5, presses=2),)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert trainer.status == ""
        trainer.listeners = ()
        assert trainer.train() == "finished"
        assert trainer.history["loss"] == whole.history["loss"]


def test_nothing_stays_of_a_run_but_its_files(settings, tmp_path):
    def losses(number, **train):
        trainer = erniecore.Trainer(
            {**settings, "train": {**settings["train"], **train}}, [f"run.out={tmp_path}/{number}"], console="none"
        )
        trainer.train()
        trainer.generate("a", max_new_tokens=2)
        kept = tensor_bytes()
        trainer.forget_model()
        assert tensor_bytes() < kept
        return trainer.history["loss"], tensor_bytes()

    first, bytes_left = losses(0)
    before = surroundings()
    other, _ = losses(1, learning_rate=3e-3, schedule="constant")
    again, bytes_now = losses(2)
    assert again == first != other
    assert bytes_now == bytes_left
    after = surroundings()
    # a file of an earlier test may have been closed meanwhile
    assert not Counter(after.pop("files")) - Counter(before.pop("files"))
    assert after == before


def test_a_stop_before_the_first_event_knows_the_directory(settings, tmp_path):
    def run(*arguments, **options):
        raise Preempted("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(erniecore, "run", run, raising=False)
        (tmp_path / "run.yaml").write_text("run: {out: there}\nmodel: {name: ernie45}\nmethod: sft\n")
        for given, overrides, out in (
            (settings, [], str(settings["run"]["out"])),
            (settings, ["run.out=other"], "other"),
            (tmp_path / "run.yaml", [], "there"),
        ):
            trainer = erniecore.Trainer(given, overrides, console="none")
            assert trainer.train() == "preempted"
            assert str(trainer.out).endswith(out)


def test_wrong_settings_are_told_with_their_keys(settings):
    settings["train"]["learning_rte"] = 1.0
    with pytest.raises(ConfigError, match=r"train\.learning_rte"):
        erniecore.Trainer(settings, console="none").train()


def step(number, **more):
    facts = {"step": number, "loss": 2.0 / number, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_s": 1200.0, "eta": 90.0}
    return {"event": "step", **facts, **more}


def test_the_display_says_what_the_events_say():
    heard = Heard()
    assert "step 0 of 0" in page.html(heard)
    heard.hear({"event": "run_start", "name": "<b>x</b>", "total_steps": 1000})
    for number in range(1, 1000):
        heard.hear(step(number, loss=None if number == 5 else 2.0 / number))
    heard.hear({"event": "eval", "step": 900, "loss": 0.5})
    heard.hear({"event": "warning", "kind": "save", "message": "disk & co", "step": 3})
    heard.hear({"event": "checkpoint", "step": 999, "path": "ckpt/a"})
    shown = page.html(heard)
    assert "&lt;b&gt;x" in shown
    assert "<b>x" not in shown
    assert "step 999 of 1000" in shown
    assert "1m 30s" in shown
    assert "disk &amp; co" in shown
    assert shown.count("<circle") == 1
    points = shown.partition('points="')[2].partition('"')[0].split()
    assert 300 < len(points) <= 480
    assert points[0] == "4.0,4.0"
    assert points[-1] == "476.0,116.0"
    assert page.text(heard).startswith("<b>x</b>  step 999/1000  loss 0.002002")
    heard.hear({"event": "run_end", "status": "preempted", "seconds": 65.0})
    assert ("preempted", "1m 05s") in page.rows(heard)
    assert not display.in_notebook()


def test_a_curve_of_few_points_is_not_thinned():
    assert page.thinned([(1, 1.0), (2, 2.0)]) == [(1, 1.0), (2, 2.0)]
    assert page.thinned([(n, float(n)) for n in range(10)], most=3) == [(0, 1.5), (4, 5.5), (9, 9.0)]
    assert page.curve({1: 1.0}, {}) == ""
    assert 'points="4.0,4.0 476.0,116.0"' in page.curve({1: 1.0, 2: 0.5}, {})
