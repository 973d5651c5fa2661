"""``ernie completion``: a real bash completes commands, options and plugin names with the installed script."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from erniecore.cli.app import main

#: what bash does at TAB: calls the function that was registered for the command
COMPLETE = """
source "$HOME/.bashrc"
complete -p ernie >/dev/null || exit 9
COMP_WORDS=("${WORDS[@]}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ernie_completion ernie; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with the script of bash installed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bashrc").write_text("# mine\n")
    assert main(["completion", "bash", "--install"]) == 0
    return tmp_path


def completed(home, *typed):
    """What bash offers for the last of what was typed."""
    listed = " ".join(f"'{word}'" for word in typed)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"HOME": str(home), "PATH": programs}
    script = f"WORDS=({listed})\n{COMPLETE}"
    done = subprocess.run(["bash", "--norc", "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_plugins(home):
    assert completed(home, "ernie", "ru") == ["run", "runs"]
    assert {"list", "clean", "stop"} <= set(completed(home, "ernie", "runs", ""))
    assert completed(home, "ernie", "run", "--meth") == ["--method"]
    assert {"sft", "simpo"} <= set(completed(home, "ernie", "run", "--method", "s"))
    assert completed(home, "ernie", "no-such-command", "") == []


def test_installing_twice_changes_nothing_more_and_keeps_what_was_there(home):
    before = (home / ".bashrc").read_text()
    assert before.startswith("# mine\n")
    assert main(["completion", "bash", "--install"]) == 0
    assert (home / ".bashrc").read_text().split() == before.split()


@pytest.mark.parametrize(("shell", "file"), [("zsh", ".zfunc/_ernie"), ("fish", ".config/fish/completions/ernie.fish")])
def test_other_shells_get_their_script_in_their_place(home, capsys, shell, file):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ERNIE_COMPLETE" in script
    assert main(["completion", shell, "--install"]) == 0
    assert (home / file).read_text().strip() == script.strip()


def test_completing_imports_neither_paddle_nor_a_command(home):
    code = "import sys; from erniecore.cli.app import main; main(); sys.exit('paddle' in sys.modules or any("
    code += "name.startswith('erniecore_') and name.endswith('.command') for name in sys.modules))"
    environ = {**os.environ, "_ERNIE_COMPLETE": "complete_bash", "COMP_WORDS": "ernie ", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"run", "serve", "web"} <= set(done.stdout.split())
