"""The ``ernie`` program itself: help without heavy imports, exit codes, errors in one shape."""

import errno
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from erniecore_catalog import install_command, known

import erniecore
from erniecore import registry
from erniecore.cli import app, render
from erniecore.cli.group import Lazy, LazyGroup, spread_values
from erniecore.cli.manual import help_pages
from erniecore.errors import ConfigError, DataError, ErnieError, Exit, PluginBroken, Problem

PROBE = (
    "import sys; from erniecore.cli.app import main; code = main(sys.argv[1:])\n"
    "print('LOADED', [m for m in ('paddle', 'numpy', 'pydantic', 'yaml', 'rich', 'jinja2') if m in sys.modules])\n"
    "sys.exit(code)"
)


def probe(site, *words):
    return subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, env=site.environ())


@pytest.mark.parametrize(
    "words",
    [("--help",), ("-h",), (), ("plugins",), ("plugins", "--json"), ("plugins", "-h"), ("run", "--help"),
     ("config", "-h"), ("config", "show", "-h"), ("version",), ("version", "--bug-report")],
    ids=" ".join,
)  # fmt: skip
def test_light_commands_import_nothing_heavy(site, words):
    done = probe(site, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "LOADED []"


PACKAGES = """
import sys
standard = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
from erniecore.__main__ import main
code = main()
print("LOADED", sorted({name.partition(".")[0] for name in sys.modules} - standard), "ctypes" in sys.modules)
"""


@pytest.mark.parametrize("command", ["--help", "plugins"])
def test_start_up_imports_these_packages_alone(site, command):
    done = subprocess.run([sys.executable, "-c", PACKAGES, command], capture_output=True, text=True, env=site.environ())
    assert (done.returncode, done.stderr) == (0, "")
    allowed = {
        "erniecore",
        "erniecore_catalog",
        "erniecore_errors",
        "erniecore_system",
        "stevedore",
        "typer",
        "annotated_doc",
        "shellingham",
        *(["tomli"] if sys.version_info < (3, 11) else []),  # tomllib of later ones
    }
    packages, ctypes = done.stdout.splitlines()[-1].removeprefix("LOADED ").rsplit(" ", 1)
    assert set(eval(packages)) <= allowed
    assert ctypes == "False"


def test_settings_errors_import_no_paddle_or_numpy(site):
    done = probe(site, "run", "train.max_steps=-1", "--model", "ernie45", "--method", "sft")
    assert done.returncode == 2
    assert "must be ≥ 0 (got -1)" in done.stderr
    assert not {"paddle", "numpy"} & set(eval(done.stdout.splitlines()[-1].removeprefix("LOADED ")))


def test_python_dash_m_is_ernie(site):
    done = subprocess.run(
        [sys.executable, "-m", "erniecore", "version"], capture_output=True, text=True, env=site.environ()
    )
    assert done.stdout == "erniecore 0.1.0\n"


def test_help_lists_every_command(capsys):
    assert app.main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in app.COMMANDS)


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_listed_command_has_help(capsys, name):
    assert app.main([name, "--help"]) == 0
    assert "Usage: ernie " + name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "no such command: ernie rnu"),
        (["rnu"], "did you mean `ernie run`?"),
        (["config", "shwo"], "did you mean `ernie config show`?"),
        (["run", "--modle", "x"], "no such option: --modle"),
        (["run", "--modle", "x"], "did you mean --model?"),
        (["config", "explain"], "missing argument"),
        (["run", "--model"], "option '--model' requires an argument"),
        (["run", "--model"], "write --model NAME|DIR"),
        (["run", "--model"], "ernie run --help"),
        (["data", "cache", "prune", "--days"], "ernie data cache prune --help"),
        (["run", "--lr", "1e-5"], "settings are written as train.learning_rate=VALUE"),
        (["config", "show", "--per-device-train-batch-size=8"], "settings are written as train.batch_size=VALUE"),
        (["chat", "--lr", "1e-5"], "no such option: --lr"),
        (["run", "a.yaml", "b.yaml"], "more than one settings file"),
        (["run", "no.yaml"], "cannot read the settings file: No such file or directory"),
        (["run", "train.max_steps"], "train.max_steps=VALUE sets a value"),
        (["run", "--demo", "--json"], "has no --json"),
    ],
)
def test_usage_errors_exit_2(capsys, words, message):
    assert app.main(words) == 2
    out, err = capsys.readouterr()
    assert message in out + err
    assert (out == "") == ("--json" not in words)


# ---- errors


@pytest.fixture
def raising(monkeypatch):
    """Makes ``ernie fail`` a command that raises what it is given."""

    def install(error):
        def fail(json: bool = False) -> int:
            raise error

        module = type(sys)("failing_command")
        module.fail = fail
        monkeypatch.setitem(sys.modules, "failing_command", module)
        monkeypatch.setitem(app.COMMANDS, "fail", Lazy("failing_command:fail", "Fails."))

    return install


@pytest.mark.parametrize("code", [c for c in Exit if c is not Exit.OK])
def test_exit_codes_of_errors(raising, capsys, code):
    error = ErnieError("no")
    error.exit_code = code
    raising(error)
    assert app.main(["fail"]) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("boom"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(7), 7),
        (typer.Exit(5), 5),
        (typer.Abort(), 130),
    ],
    ids=["bug", "interrupt", "system exit", "typer exit", "abort"],
)
def test_exit_codes_of_other_exceptions(raising, capsys, error, code):
    raising(error)
    assert app.main(["fail"]) == code


def test_a_bug_shows_no_traceback(raising, capsys):
    raising(RuntimeError("boom"))
    app.main(["fail"])
    err = capsys.readouterr().err
    assert "RuntimeError: boom" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_debug_shows_the_traceback(raising, capsys, monkeypatch, how):
    raising(DataError("bad row"))
    if how == "variable":
        monkeypatch.setenv("ERNIE_DEBUG", "1")
    assert app.main(["fail", *(["--debug"] if how == "flag" else [])]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_the_shape_of_an_error():
    error = DataError(
        "row not usable", where="f.jsonl:3", found="'x'", expected="y", fix="mend it", next="ernie data check"
    )
    assert render.error_text(error).splitlines() == [
        "error ERN-D001  row not usable" + " " * 42 + "exit 4",
        "  where   f.jsonl:3",
        "  found   'x'",
        "  expect  y",
        "  fix     mend it",
        "  next    ernie data check",
    ]


def test_the_shape_of_settings_errors():
    error = ConfigError([Problem("b.yaml", 2, "x.y", "no"), Problem("a.yaml", 0, "", "bad")])
    assert [" ".join(line.split()) for line in render.error_text(error).splitlines()] == [
        "error ERN-C010 2 problems in the settings exit 2",
        "a.yaml: bad",
        "b.yaml:2: x.y: no",
    ]


def test_json_errors_are_one_line_on_stdout(raising, capsys):
    raising(ConfigError([Problem("a.yaml", 2, "x.y", "no")]))
    assert app.main(["fail", "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["event"], found["exit"], found["error"]["code"]) == ("error", 2, "ERN-C010")
    assert found["error"]["problems"] == [{"source": "a.yaml", "line": 2, "key": "x.y", "message": "no"}]
    assert err == ""


class Terminal:
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environ", "color"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)]
)
def test_color_only_where_wanted(environ, color):
    assert render.use_color(Terminal(), environ) is color


def test_a_reader_that_left_before_the_first_line_is_no_error(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Closed())
    assert app.main(["config", "explain", "run.seed"]) == Exit.OK
    sys.stdout.close()  # whatever took its place


def test_a_reader_that_leaves_is_no_error(site):
    command = f"{sys.executable} -m erniecore config show | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=site.environ())
    assert (done.returncode, done.stderr) == (0, "")


# ---- commands of plugins

COMMAND = """
    import typer
    app = typer.Typer()
    @app.command()
    def greet(name: str):
        print(f"hello {name}")
"""


def command(site, source):
    return site.add("greeter", {"erniecore.commands": {"greet": "greeter:app"}}, {"greeter.py": source})


def test_a_command_plugin_runs(site, capsys):
    command(site, COMMAND)
    assert app.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"


def test_a_command_plugin_is_listed_without_import(site, capsys):
    command(site, "raise RuntimeError")
    assert app.main(["--help"]) == 0
    assert "greet" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["raise RuntimeError('no')", "app = 7"])
def test_a_broken_command_plugin_exits_9(site, capsys, source):
    command(site, source)
    assert app.main(["greet"]) == PluginBroken.exit_code
    assert "greeter 1.0 (greeter:app)" in capsys.readouterr().err


def test_a_plugin_cannot_replace_a_command_of_the_core(site, capsys):
    site.add("greeter", {"erniecore.commands": {"version": "greeter:app"}}, {"greeter.py": COMMAND})
    assert app.main(["version"]) == 0
    assert "erniecore 0.1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("--data a b --out c", "--data a --data b --out c"),
        ("--data a x.k=1 b", "--data a x.k=1 b"),
        ("--data a b run.yaml", "--data a --data b run.yaml"),
        ("run.yaml --data a", "run.yaml --data a"),
        ("--out a b", "--out a b"),
        ("--data a -- b c", "--data a -- b c"),
        ("--data", "--data"),
    ],
)
def test_options_that_take_several_words(args, expected):
    assert spread_values(args.split(), {"--data"}) == expected.split()


def test_build_cli_gives_the_group():
    assert isinstance(app.build_cli(), LazyGroup)


def test_the_manual_has_every_command_and_subcommand():
    pages = dict(help_pages())
    assert {f"ernie {name}" for name in app.COMMANDS} <= set(pages)
    assert "Usage: ernie config show [OPTIONS] [FILE] [SECTION.KEY=VALUE]..." in pages["ernie config show"]
    assert "\x1b" not in "".join(pages.values())


def test_a_plugin_adds_a_subcommand(site, capsys):
    source = "def shout(text: str) -> None:\n    '''Shout.'''\n    print(text.upper())\n"
    site.add("shouting", {"erniecore.commands": {"data.shout": "shouting:shout"}}, {"shouting.py": source})
    assert app.main(["data", "shout", "hello"]) == 0
    assert capsys.readouterr().out == "HELLO\n"
    assert app.main(["data", "--help"]) == 0
    assert "shout" in capsys.readouterr().out
    assert app.main(["--help"]) == 0
    assert "shout" not in capsys.readouterr().out


@pytest.mark.parametrize(("words", "name"), [(["score"], "score"), (["data", "sing"], "data.sing")])
def test_a_command_that_is_not_installed_names_its_distribution(monkeypatch, capsys, words, name):
    monkeypatch.setattr(registry, "entries", lambda kind: [])
    monkeypatch.setattr(known, "known", lambda: {("command", name): "erniecore-choir"})
    assert app.main(words) == 2
    message = capsys.readouterr().err
    assert f"the command `ernie {' '.join(words)}` is not installed" in message
    assert install_command("erniecore-choir") in message


def test_the_group_data_stands_without_any_subcommand(monkeypatch, capsys):
    monkeypatch.setattr(registry, "entries", lambda kind: [])
    assert app.main(["data"]) == 0
    assert "erniecore-columnar" in capsys.readouterr().out
    assert app.main(["data", "chekc"]) == 2
    assert "did you mean `ernie data check`?" in capsys.readouterr().err
    assert app.main(["data", "check"]) == 2
    assert install_command("erniecore-data") in capsys.readouterr().err


def test_paddles_warning_of_ccache_is_not_shown():
    """Whoever imports paddle, and whatever the interpreter is told about warnings."""
    code = "import warnings, erniecore; warnings.warn('No ccache found. Please be aware'); warnings.warn('another')"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert "UserWarning: No ccache" not in done.stderr
    assert "UserWarning: another" in done.stderr
    paddle = Path(importlib.util.find_spec("paddle").origin).parent
    assert "No ccache found" in (paddle / "utils/cpp_extension/extension_utils.py").read_text()


def test_version_is_an_option_too(capsys):
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out == f"erniecore {erniecore.__version__}\n"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
@pytest.mark.parametrize("words", [["generate", "--temperature"], ["wan", "plan", "--step-seconds"]])
def test_options_take_finite_numbers(capsys, words, number):
    """With bounds or without: click's ranges have NaN in them."""
    assert app.main([*words, number]) == 2
    message = capsys.readouterr().err
    assert "is not a finite number" in message or "is not in the range" in message


def test_options_that_are_numbers_show_their_bounds(capsys):
    assert app.main(["wan", "plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert "0.001<=x<=0.999" in text
    assert "None" not in text
