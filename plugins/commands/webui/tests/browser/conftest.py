"""A real server on real runs, and Chromium. `make test-web` runs these tests; it says what to install."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser_guard import STUCK, Guard
from processes import user_environ
from talker import make_talker
from webui_runs import write_run

IMAGES = os.environ.get("WEB_IMAGES", "")
GUARD = Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    GUARD.begin(item.nodeid)
    try:
        return (yield)
    finally:
        GUARD.end()
        if GUARD.stuck:
            item.session.shouldstop = "the browser hangs"


def pytest_sessionfinish(session):
    if GUARD.stuck:
        session.exitstatus = STUCK


class Server:
    """``ernie web`` as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, home):
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.base = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        """Start, and wait until it has printed its address."""
        log = self.home / "server.log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "erniecore", "web", "runs", "--port", str(self.port)],
                cwd=self.home, env=user_environ(), stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        while not (found := re.search(r"^(http\S+)$.*stop with", log.read_text(), re.MULTILINE | re.DOTALL)):
            assert self.process.poll() is None, log.read_text()
            time.sleep(0.05)
        self.url = found[1]

    def kill(self):
        """As the kernel does when memory is short."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def train(self, name, *settings):
        """``ernie run`` from a terminal, which knows nothing of the page."""
        with (self.home / f"{name}.log").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "erniecore", "run", "run.yaml", "--out", f"runs/{name}", *settings],
                cwd=self.home, env=user_environ(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip


@pytest.fixture(scope="package")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("web")
    make_talker(home)
    (home / "run.yaml").write_text(
        "model: {path: model}\nmethod: {name: sft}\n"
        "data: {train: [{path: rows.jsonl}], eval: [{path: rows.jsonl}], format: messages, max_seq_len: 96}\n"
        "train: {max_steps: 600, batch_size: 10, learning_rate: 0.002, warmup_steps: 20}\n"
        "eval: {every: 100}\ncheckpoint: {every: 150, export: true}\nlog: {report: false}\n"
    )
    (home / "runs").mkdir()
    write_run(
        home / "runs" / "a-very-long-name-of-a-run-that-does-not-fit-into-any-column-of-a-narrow-window-at-all", 12
    )
    write_run(home / "runs" / "crashed", 40, status="", loss=2.0)
    found = Server(home)
    yield found
    found.process.terminate()
    assert found.process.wait() == 0
    shutil.rmtree(home)


@pytest.fixture(scope="package")
def chromium():
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert path, "no browser: apt-get install chromium, or set CHROMIUM"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, server):
    """Open a page as somebody who has the token; at the end no console may have an error beside ``visit.expected``."""
    contexts, errors, expected = [], [], []

    def open_page(path="/runs", **options):
        context = chromium.new_context(**{"viewport": {"width": 1360, "height": 860}, "locale": "en-US", **options})
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.goto(server.url)
        page.goto(server.base + path)
        return page

    open_page.expected = expected
    yield open_page
    for context in contexts:
        context.close()
    left = [text for text in errors if not any(part in text for part in expected)]
    assert not left, left


@pytest.fixture
def image():
    """Keep a picture for the documentation, where WEB_IMAGES names a directory."""

    def keep(page, name):
        if IMAGES:
            from io import BytesIO

            from PIL import Image

            picture = Image.open(BytesIO(page.screenshot(animations="disabled")))
            picture.convert("RGB").save(Path(IMAGES) / f"web-{name}.webp", quality=82, method=6)

    return keep
