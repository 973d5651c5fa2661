"""A run does not care for installed plugins that it does not use: some come and some go, and the same command goes on."""

import re
import shutil
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

#: of what a run of these tests has, beside the core: what pip would have installed
INSTALLED = "ernie45,sft,formats,erniecore-formats,ernie-third-party-kernels"

FORMAT = """
    from erniecore.api import hookimpl
    from erniecore.api.data import FormatConfig, FormatPlugin
    from erniecore.api import Field

    class Config(FormatConfig):
        column: str = Field("text", description="Column.")

    class Made(FormatPlugin):
        name, summary, Config = "{name}", "for tests", Config

        @hookimpl
        def ernie_match_row(self, row): return {matches}

        @hookimpl
        def ernie_parse_row(self, row): raise AssertionError

    plugin = Made()
"""


def add_format(site, name, matches):
    files = {f"{name}_format.py": FORMAT.format(name=name, matches=matches)}
    site.add(f"acme-{name}", {"erniecore.formats": {name: f"{name}_format:plugin"}}, files)


def words_of(runner):
    options = {"run__out": None, "log__every": 1, "checkpoint__every": 5, "train__max_steps": 20}
    return ["run", *runner.words(**options)]


def start(runner, site, *further):
    """The command where ``INSTALLED`` and further plugins are installed."""
    environ = site.environ(OMP_NUM_THREADS="1", ERNIE_PLUGINS=",".join([INSTALLED, *further]))
    command = [sys.executable, "-m", "erniecore", *words_of(runner)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=runner.directory, env=environ, stdout=pipe, stderr=pipe, text=True)


def test_a_killed_run_goes_on_after_plugins_have_come_and_gone(runner, site, ernie):
    runner.complete("whole", checkpoint__every=5, train__max_steps=20)
    add_format(site, "leaver", '"leaver" in row')
    with start(runner, site, "leaver") as process:
        for line in process.stdout:
            if line.startswith("save   step 10 "):  # written and whole
                process.send_signal(signal.SIGKILL)
                break
    shutil.rmtree(site.path / "acme_leaver-1.0.dist-info")
    (site.path / "leaver_format.py").unlink()
    add_format(site, "comer", "True")  # claims every row of every file
    site.add("acme-bad", {"erniecore.formats": {"bad": "bad_format:plugin"}}, {"bad_format.py": "raise SystemExit(9)"})
    with start(runner, site, "comer", "bad") as process:
        out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert re.search(r"step-000000(10|15):\s+the newest verified checkpoint", out)
    (made,) = (runner.directory / "runs").iterdir()
    assert runner.tensors(20, made.relative_to(runner.directory)) == runner.tensors(20, "whole")
    assert "leaver" not in (made / "resolved.yaml").read_text()
    planned = ernie("run", made / "resolved.yaml", "--dry-run", env={"ERNIE_PLUGINS": INSTALLED})
    assert planned.code == 0, planned.err
