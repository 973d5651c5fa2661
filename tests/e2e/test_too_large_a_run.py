"""A run that does not fit into memory does not start, and says what would; --force starts it."""

import re

import pytest
from erniecore_system.memory import HostMemory

from erniecore.engine.preparation import room
from erniecore.errors import Exit

GIB = 1 << 30


@pytest.fixture
def left(monkeypatch):
    """Make so many bytes of memory be left."""

    def leave(size):
        monkeypatch.setattr(room, "host_memory", lambda: HostMemory(24 * GIB, size, None))

    return leave


def test_a_public_size_is_refused_with_what_would_fit(refuses, home, tmp_path, left):
    left(20 * GIB)
    large = ["model.size=21b-a3b", f"model.tokenizer={home / 'tok'}", "train.precision=float32", "method=sft"]
    words = ["run", "model=ernie45-moe", *large, f"data.train={home / 'train.jsonl'}", f"run.out={tmp_path / 'out'}"]
    outcome = refuses(words, Exit.MEMORY, "does not fit into memory", "at most 20.0 GiB", remedy="--force")
    sizes = dict(re.findall(r"(adapter=lora[^(]*) \(([\d.]+) GiB\)", outcome.err))
    assert float(sizes["adapter=lora quantizer=wint4"]) < 20 < float(sizes["adapter=lora"])


def test_little_memory_ends_a_small_run_unless_it_is_forced(ernie, runner, left):
    words = ["run", *runner.words(train__max_steps=1)]
    left(room.PROCESS // 2)
    assert ernie(*words).code == Exit.MEMORY
    assert not list((runner.directory / "out").rglob("events.jsonl"))
    forced = ernie(*words, "--force")
    assert forced.code == 0, forced.err
    assert "the system may kill it" in forced.err


@pytest.mark.parametrize(("count", "code"), [(1, Exit.OK), (2, Exit.MEMORY)])
def test_every_process_of_this_machine_counts(ernie, runner, left, count, code):
    """With twice what one process needs, and a little less than two do."""
    words = runner.words(train__max_steps=1, parallel__name="hybrid", parallel__data=count, train__batch_size=2)
    left(2 * room.PROCESS)
    assert ernie("run", *words).code == code
