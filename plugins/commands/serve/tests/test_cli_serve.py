"""``ernie serve``: which server, with which settings, on which model; the serving itself belongs to plugins."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from erniecore_serve.command import default_server

from erniecore.cli.app import main
from erniecore.errors import Exit, UsageError

SERVER = """
    from erniecore.api import Field, Plugin, Section, hookimpl

    class Config(Section):
        port: int = Field(80, ge=0, le=65535, description="Port.")
        title: str = Field("", description="Shown to visitors.")
        answer: int = Field(0, description="Exit code.")

    class Echo(Plugin):
        kind, name, summary, Config = "server", "echo", "a server for tests", Config

        @hookimpl
        def ernie_serve(self, config, directory):
            print(config.port, config.title, directory)
            return config.answer if config.answer >= 0 else None

    plugin = Echo()
"""


@pytest.fixture
def model(tmp_path):
    """A run with a finished model, as far as finding it goes."""
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    return tmp_path / "run" / "model"


@pytest.fixture
def serve(site, capsys):
    """Run the command with the server ``echo`` installed: (exit code, stdout, stderr)."""
    site.add("echo", {"erniecore.servers": {"echo": "echo_server:plugin"}}, {"echo_server.py": SERVER})

    def run(*arguments):
        code = main(["serve", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def test_the_server_gets_its_settings_and_the_model(serve, model):
    assert serve("--model", model, "--backend", "echo", "port=0", "title=2024") == (0, f"0 2024 {model}\n", "")


def test_a_run_means_its_finished_model(serve, model):
    code, out, err = serve("--model", model.parent, "--backend", "echo")
    assert (code, out) == (0, f"80  {model}\n")
    assert err == f"note: using the run's finished model {model}\n"


def test_the_exit_code_is_the_servers(serve, model):
    assert serve("--model", model, "--backend", "echo", "answer=7")[0] == 7


def test_a_server_that_returns_no_exit_code_is_broken(serve, model):
    code, _, err = serve("--model", model, "--backend", "echo", "answer=-1")
    assert code == Exit.PLUGIN
    assert "returned None" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model to serve"),
        (["--backend", "ehco"], "did you mean echo?"),
        (["--backend", "echo"], "ernie serve --help"),
        (["--backend", "echo", "prot=1"], "did you mean port?"),
        (["--backend", "echo", "port=70000"], "port=70000: must be"),
        (["--backend", "echo", "--adapter", "a=dir"], "this server takes no adapters"),
        (["--backend", "echo", "8080"], "'8080' is neither an option nor key=value"),
        (["--backend", "echo", "--model", "nowhere"], "no such directory"),
    ],
)
def test_refusals_say_what_to_do(serve, arguments, message):
    code, out, err = serve(*arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert message in err


def test_without_a_name_it_is_the_own_server_or_the_only_one():
    assert default_server(["fastdeploy", "openai"]) == "openai"
    assert default_server(["echo"]) == "echo"
    with pytest.raises(UsageError, match="no server is named") as several:
        default_server(["echo", "fastdeploy"])
    assert several.value.expected == "one of echo, fastdeploy"
    with pytest.raises(UsageError) as none:
        default_server([])
    assert "openai" in none.value.fix


def test_the_last_model_of_a_run_is_offered(serve, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.parent.rename("first")
    (tmp_path / "runs").mkdir()
    (tmp_path / "first").rename("runs/first")
    arguments = re.search(r"next +ernie serve (.*)", serve("--backend", "echo")[2])[1].split()
    assert serve(*arguments)[:2] == (0, "80  runs/first/model\n")


def test_a_checkpoint_is_to_be_exported_first(serve, tmp_path):
    (tmp_path / "MANIFEST.json").write_text("{}")
    code, _, err = serve("--model", tmp_path, "--backend", "echo")
    assert code == Exit.USAGE
    assert f"ernie export {tmp_path} --out exported" in err


@pytest.fixture
def installed(monkeypatch):
    """Sets the names of the servers that are installed."""
    return lambda *names: monkeypatch.setattr(
        "erniecore.api.installation.entries", lambda kind: [SimpleNamespace(name=name) for name in names]
    )


def test_the_only_server_needs_no_name(serve, installed, model):
    installed("echo")
    assert serve("--model", model, "port=0") == (0, f"0  {model}\n", "")


def test_without_any_server_the_way_to_one_is_named(installed, site, capsys):
    installed()
    assert main(["serve"]) == Exit.USAGE
    error = capsys.readouterr().err
    assert "there is none" in error
    assert "erniecore-openai" in error or "plugins/servers/openai" in error
    assert "ernie new plugin --kind server" in error


PATIENT = """
    import time
    from erniecore.api import Plugin, Section, hookimpl
    from erniecore.engine.launch import default_device

    class Patient(Plugin):
        kind, name, summary, Config = "server", "patient", "imports paddle and waits", Section

        @hookimpl
        def ernie_serve(self, config, directory):
            default_device("cpu").open()
            print("serving", flush=True)
            time.sleep(600)

    plugin = Patient()
"""


def test_a_server_that_is_asked_to_stop_says_so_and_dumps_nothing(site, model):
    site.add("patient", {"erniecore.servers": {"patient": "patient_server:plugin"}}, {"patient_server.py": PATIENT})
    command = [sys.executable, "-m", "erniecore", "serve", "--model", str(model), "--backend", "patient"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=site.environ(), stdout=pipe, stderr=pipe, text=True)
    assert process.stdout.readline() == "serving\n"
    process.terminate()
    _, errors = process.communicate()
    assert (process.returncode, errors) == (128 + 15, "stopped by SIGTERM\n")


def test_nothing_heavy_is_imported(serve, site, model):
    code = (
        "import sys\nfrom erniecore.cli.app import main\n"
        f"main(['serve', '--model', {str(model)!r}, '--backend', 'echo'])\n"
        "sys.exit('paddle' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=site.environ(), capture_output=True).returncode == 0
