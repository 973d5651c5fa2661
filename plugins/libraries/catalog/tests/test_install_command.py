"""The command that errors print works for how erniecore was installed: from a clone, beside wheels, from an index."""

import json
import sys
from pathlib import Path

import pytest
from erniecore_catalog import install_command, installing

ROOT = Path(__file__).parents[4]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function (installer, direct_url.json or None, environment): erniecore seems to have been installed so, alone."""

    def install(installer, direct_url, prefix):
        info = tmp_path / "site" / "erniecore-0.1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: erniecore\nVersion: 0.1.0\n"
            "Requires-Dist: paddlepaddle>=3.3,<3.4 ; extra == 'cpu'\n"
        )
        (info / "INSTALLER").write_text(installer + "\n")
        if direct_url is not None:
            (info / "direct_url.json").write_text(json.dumps(direct_url))
        programs = prefix / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name in ("python", "pip", "uv"):
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        monkeypatch.setattr(sys, "path", [str(info.parent)])
        monkeypatch.setattr(sys, "prefix", str(prefix))
        monkeypatch.setattr(sys, "executable", str(programs / "python"))
        monkeypatch.setenv("PATH", str(programs))

    return install


def clone(folder, *, editable=True):
    return {"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}}


def small_clone(folder):
    """A clone with two plugins, one of which needs the other."""
    for path, needs in (("methods/new_method", "erniecore-base"), ("models/base", "numpy")):
        name = "erniecore-" + Path(path).name.replace("_", "-")
        project = folder / "plugins" / path / "pyproject.toml"
        project.parent.mkdir(parents=True)
        project.write_text(f'[project]\nname = "{name}"\ndependencies = ["erniecore>=0.1", "{needs}>=0.1"]\n')
    (folder / "pyproject.toml").write_text('[project]\nname = "erniecore"\n')
    return folder


def test_an_environment_beside_a_clone_names_the_folders_and_what_they_need(installed, tmp_path, monkeypatch):
    installed("pip", clone(small_clone(tmp_path / "my clone")), tmp_path / "env")
    monkeypatch.chdir(tmp_path / "my clone")
    asked = install_command("erniecore-new-method", "somebody-elses>=2")
    assert asked == "pip install -e plugins/methods/new_method -e plugins/models/base 'somebody-elses>=2'"
    monkeypatch.chdir(tmp_path)
    assert install_command("erniecore-base") == "pip install -e 'my clone/plugins/models/base'"
    asked = install_command("erniecore", "ancient", option="--upgrade")
    assert asked == "pip install --upgrade -e 'my clone' ancient"


def test_folders_of_this_repository_are_found(installed, tmp_path, monkeypatch):
    installed("pip", clone(ROOT), tmp_path / "env")
    monkeypatch.chdir(ROOT)
    needed = "-e plugins/methods/sft -e plugins/libraries/ops -e plugins/libraries/text"
    assert install_command("erniecore-sft") == f"pip install {needed}"
    assert install_command("ernie-third-party-kernels") == "pip install -e third_party_kernels"
    chain = install_command("erniecore-demo").split(" -e ")
    assert {"plugins/commands/demo", "plugins/models/ernie45_moe", "plugins/libraries/text"} <= set(chain)


def test_the_environment_of_make_demo_asks_for_make_install(installed, tmp_path, monkeypatch):
    tree = small_clone(tmp_path / "clone")
    installed("pip", clone(tree), tree / ".venv")
    monkeypatch.chdir(tree)
    assert install_command("erniecore-new-method") == "make install"
    monkeypatch.chdir(tmp_path)
    assert install_command("erniecore-new-method") == "make -C clone install"
    assert install_command("erniecore-not-here") == "pip install erniecore-not-here"
    # `make install` has run and would do nothing; somebody uninstalled a distribution
    (tree / ".venv" / ".ready").touch()
    assert install_command("erniecore-base") == "pip install -e clone/plugins/models/base"


def test_a_clone_that_was_copied_into_the_environment(installed, tmp_path, monkeypatch):
    installed("pip", clone(small_clone(tmp_path / "clone"), editable=False), tmp_path / "env")
    monkeypatch.chdir(tmp_path)
    assert install_command("erniecore-base") == "pip install clone/plugins/models/base"


@pytest.mark.parametrize(
    ("installer", "direct_url", "command"),
    [
        ("pip", None, "pip install erniecore-sft"),
        ("uv", None, "uv pip install erniecore-sft"),
        ("pip", {"url": "https://example.org/erniecore.whl", "archive_info": {}}, "pip install erniecore-sft"),
        ("pip", {"url": "file:///srv/a%20b/erniecore-0.1.0-py3-none-any.whl", "archive_info": {}},
         "pip install --find-links '/srv/a b' erniecore-sft"),
    ],
)  # fmt: skip
def test_wheels_and_indexes(installed, tmp_path, installer, direct_url, command):
    installed(installer, direct_url, tmp_path / "env")
    assert install_command("erniecore-sft") == command


def test_ranges_are_those_of_the_metadata(installed, tmp_path):
    installed("pip", None, tmp_path / "env")
    assert install_command("paddlepaddle", of="erniecore") == "pip install 'paddlepaddle>=3.3,<3.4'"
    assert install_command("pyarrow", of="erniecore-columnar") == "pip install pyarrow"


def test_a_pip_of_another_environment_is_not_named(installed, tmp_path, monkeypatch):
    installed("pip", None, tmp_path / "env")
    (tmp_path / "other").mkdir()
    (tmp_path / "env/bin/pip").rename(tmp_path / "other/pip")
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    monkeypatch.chdir(tmp_path)
    assert install_command("erniecore-sft") == "env/bin/python -m pip install erniecore-sft"


def test_without_metadata_the_plain_command_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installing.origin_of("erniecore") == installing.Origin()
