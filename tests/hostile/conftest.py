"""Attempts: what a hostile or broken file, setting, plugin or machine may do to a command, each in a fork with hard limits.

An attempt ends with a documented exit code and, unless that is 0, an error with a code; without a traceback or anything that
commands a terminal; within limits of memory and time; and nothing beside its own directory is written.
``make test`` has a sample of them, ``make test-hostile`` all, and writes the counts for ``docs/explanation/promises.md``.
"""

import hashlib
import json
import os
import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest
from guarded import guarded
from processes import commit, user_environ
from talker import talker as talker  # the fixture

#: of 256 attempts, so many are part of `make test`
SAMPLE = 5
#: where the test reports say which area of the attempts they belong to
_AREA = "area"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """The area of each attempt; without ``--every-attempt``, the sample."""
    here = Path(__file__).parent
    own = [item for item in items if here in item.path.parents]
    for item in own:
        item.user_properties.append((_AREA, item.get_closest_marker(_AREA).args[0]))
    if not config.getoption("--every-attempt", False):
        left = [item for item in own if hashlib.sha256(item.name.encode()).digest()[0] >= SAMPLE]
        config.hook.pytest_deselected(items=left)
        gone = set(map(id, left))
        items[:] = [item for item in items if id(item) not in gone]


class Results:
    """Attempts and failures by area, written as JSON when the tests have ended."""

    def __init__(self, file):
        self.file, self.areas, self.commit = file, {}, commit()  # before the run rewrites a file

    def pytest_runtest_logreport(self, report):
        area = dict(report.user_properties).get(_AREA)
        if area is not None and (report.when == "call" or report.failed):
            attempts = self.areas.setdefault(area, {})
            attempts[report.nodeid] = attempts.get(report.nodeid, False) or report.failed

    def pytest_sessionfinish(self):
        areas = [
            {"area": area, "attempts": len(found), "failures": sum(found.values())}
            for area, found in sorted(self.areas.items())
        ]
        date = datetime.now(timezone.utc).date().isoformat()
        text = json.dumps({"suite": "hostile", "date": date, "commit": self.commit, "areas": areas}, indent=2)
        Path(self.file).write_text(text + "\n", encoding="utf-8")


def pytest_configure(config):
    file = config.getoption("--hostile-results", None)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(file), "hostile-results")


@pytest.fixture(scope="session")
def imported():
    """Everything that commands need is imported once, and every attempt is a fork that has it."""
    from warm import import_all

    import_all({})


@pytest.fixture(scope="session")
def made(warm):
    """``made(*arguments)``: a command that must succeed, in a process that nothing was computed in before it was forked:
    threads of operators do not survive a fork."""

    def make(*arguments):
        process = warm.start(arguments, Path.cwd(), user_environ())
        out, errors = process.communicate()
        assert process.returncode == 0, out + errors

    return make


@pytest.fixture(autouse=True)
def box(tmp_path, monkeypatch):
    """The directory in which an attempt takes place; nothing beside it may change."""
    box, outside = tmp_path / "box", tmp_path / "outside"
    (outside / "model").mkdir(parents=True)
    (outside / "secret.txt").write_text("secret\n")
    box.mkdir()
    for name in [n for n in os.environ if n.startswith(("ERNIE_", "PADDLE_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(box))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(box)
    before = _tree(tmp_path, box)
    yield box
    assert _tree(tmp_path, box) == before, "something was written outside of the attempt's directory"


def _tree(place, box):
    """Path -> size and time of what is in ``place``, but not in ``box``."""
    found = {}
    for home, folders, files in os.walk(place):
        if Path(home) == place and box.name in folders:
            folders.remove(box.name)
        for name in (*folders, *files):
            facts = os.lstat(os.path.join(home, name))
            found[os.path.join(home, name)] = (facts.st_size, facts.st_mtime_ns, facts.st_mode)
    return found


@pytest.fixture
def model(talker, box):
    """A model directory of this test's own."""
    return shutil.copytree(talker / "model", box / "model")


@pytest.fixture
def rows(talker, box):
    """A data file of this test's own."""
    return Path(shutil.copy(talker / "rows.jsonl", box / "rows.jsonl"))


@pytest.fixture
def ernie(imported, box):
    """Run a command: exit code, stdout, stderr. ``environ``: more variables; ``before``: called in its process first."""
    from erniecore.cli.app import main

    def run(*words, environ=None, before=None, **limits):
        def command():
            os.environ.update(environ or {})
            if before is not None:
                before()
            return main([str(word) for word in words])

        return guarded(command, box=box, **limits)

    return run


@pytest.fixture
def answers(ernie, model):
    """Load the model directory and write one token: exit code, stdout, stderr."""

    def run(*more):
        return ernie("generate", "--model", model, "--prompt", "copy", "--max-new-tokens", "1", *more)

    return run


@pytest.fixture
def loads(imported, box, model):
    """Load the model directory as commands do, without one: exit code, stdout, stderr."""

    def load():
        from erniecore.cli.render import show_error
        from erniecore.engine.models.bundles import load_bundle
        from erniecore.errors import ErnieError

        try:
            load_bundle(model)
        except ErnieError as error:
            show_error(error)
            return int(error.exit_code)
        return 0

    return lambda: guarded(load, box=box)
