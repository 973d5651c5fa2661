"""Templates of others run in a process with limits: what they may try, and what the process goes through."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from erniecore_text import render_process
from erniecore_text.render_server import SECONDS
from erniecore_text.template import JinjaChatTemplate
from render_limits import BOMBS, small_limits

from erniecore.errors import DataError, EnvironmentFault, RowError
from erniecore.types.records import Message

CHAT = [Message("user", "a")]


@pytest.fixture(scope="module")
def reached_soon():
    with small_limits():
        yield


@pytest.mark.usefixtures("reached_soon")
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_ends_as_an_error_of_the_template(bomb):
    with pytest.raises(EnvironmentFault) as caught:
        JinjaChatTemplate("\n" + BOMBS[bomb], file="m/chat_template.jinja").render(CHAT)
    error = caught.value
    assert error.code == "ERN-E030"
    assert error.where.startswith("m/chat_template.jinja: chat template")
    assert "processor time" in error.found or "memory" in error.found
    assert f"{SECONDS:g} s" in error.expected
    assert "model.template" in error.fix
    assert JinjaChatTemplate("{{ messages[0].content }}").render(CHAT) == "a"


def test_the_error_names_the_line():
    source = "{% macro f(n) %}\n{% if n %}\n{{ f(n) }}\n{% endif %}{% endmacro %}\n\n{{ f(1) }}"
    with pytest.raises(DataError, match=r"chat template, line \d"):
        JinjaChatTemplate(source).render(CHAT)
    with pytest.raises(RowError, match="chat template, line 3"):
        JinjaChatTemplate("a\nb\n{{ messages | length // 0 }}", trusted=True).render(CHAT)


def process():
    """The one that renders."""
    JinjaChatTemplate("x").render(CHAT)
    return render_process._keeper._process


def test_the_kernel_holds_the_limits():
    with open(f"/proc/{process().pid}/limits") as stream:
        limits = {line[:25].strip(): line[25:].split()[0] for line in stream}
    assert limits["Max address space"] == str(render_process.MEMORY)
    assert limits["Max open files"] == "3"
    assert limits["Max file size"] == limits["Max core file size"] == "0"
    assert int(limits["Max cpu time"]) < 60


def test_a_process_that_was_killed_is_started_again():
    template = JinjaChatTemplate("{{ messages[0].content }}")
    before = process().pid
    os.kill(before, signal.SIGKILL)
    assert template.render(CHAT) == "a"
    assert process().pid != before


def test_killed_again_and_again_it_is_an_error():
    done = threading.Event()

    def kill():
        while not done.is_set():
            if render_process._keeper._process is not None:
                os.kill(render_process._keeper._process.pid, signal.SIGKILL)
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(EnvironmentFault, match="ended with status -9, twice"):
            JinjaChatTemplate("x")
    finally:
        done.set()
        thread.join()
    assert JinjaChatTemplate("x").render(CHAT) == "x"


#: in the process that renders, before it serves: stands for an end that nobody foresaw
ENDS = """
import os
from erniecore_text import render_server
before = render_server._warm_up
def _warm_up():
    before()
    render_server.Rendering.text = lambda *_: os._exit(7)
render_server._warm_up = _warm_up
"""


def test_a_template_at_which_the_process_ends_is_an_error(monkeypatch):
    """Every new process opens it, and ends when it renders it."""
    serve = "from erniecore_text.render_server import serve\n"
    assert serve in render_process._START
    start = render_process._START.replace(serve, ENDS + serve)
    render_process._keeper.end()
    with monkeypatch.context() as patch:
        patch.setattr(render_process, "_Process", functools.partial(render_process._Process, start))
        template = JinjaChatTemplate("{{ messages[0].content[:1] }}")
        with pytest.raises(EnvironmentFault, match="ended with status 7, twice"):
            template.render(CHAT)
    assert template.render(CHAT) == "a"


@pytest.mark.parametrize(
    ("message", "said"), [("['a', 1]", "['a', 1]"), ("[namespace(x=1)]", "{'x': 1}"), ("5", "5"), ("none", "None")]
)
def test_a_template_may_refuse_with_what_is_no_text(message, said):
    with pytest.raises(DataError) as caught:
        JinjaChatTemplate("{{ raise_exception(" + message + ") }}").render(CHAT)
    assert caught.value.code == "ERN-D041"
    assert said in str(caught.value)


def test_more_templates_than_are_kept():
    templates = [JinjaChatTemplate("{{ messages[0].content }}" + str(i)) for i in range(70)]
    assert [t.render(CHAT) for t in templates] == [f"a{i}" for i in range(70)]


def test_a_forked_process_has_its_own():
    template, parents = JinjaChatTemplate("{{ messages[0].content }}"), process().pid
    child = os.fork()
    if not child:
        try:
            os._exit(0 if template.render(CHAT) == "a" and process().pid != parents else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert process().pid == parents
    assert template.render(CHAT) == "a"


def test_it_ends_with_the_process_that_started_it():
    code = (
        "import os, signal; from erniecore_text.template import JinjaChatTemplate as T\n"
        "from erniecore_text import render_process as r\n"
        "T('x'); print(r._keeper._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(started.stdout)
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            time.sleep(0.01)


def test_several_threads_share_it():
    template = JinjaChatTemplate("{{ messages[0].content }}{% if messages[0].content[:1] == 'z' %}{% endif %}")
    out: dict[int, list[str]] = {}

    def render(number):
        out[number] = [template.render([Message("user", f"{number}.{i}")]) for i in range(50)]

    threads = [threading.Thread(target=render, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {n: [f"{n}.{i}" for i in range(50)] for n in range(4)}
