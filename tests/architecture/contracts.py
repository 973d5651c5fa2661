"""Who may import whom, as import-linter contracts. ``make lint`` runs this file; it exits as ``lint-imports`` does.

The contracts of the core stand in ``pyproject.toml``. Those of the plugins are made here from ``plugins/*/*/pyproject.toml``:
the core imports no plugin but the libraries in its ``dependencies``, a plugin imports of the core only its public modules,
and of other plugins only those in its own ``dependencies``. Files and folders beside each other import one another in one
direction, as in the core; imports for type checkers alone are not counted.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
#: modules of the core that a plugin may import
PUBLIC = ("api",)


def package_of(requirement):
    """The import name of ours that a requirement such as ``erniecore-sft>=0.1,<0.2`` stands for, else None."""
    name = re.split(r"[^-\w]", requirement, maxsplit=1)[0]
    return name.replace("-", "_") if name.startswith("erniecore-") else None


def projects():
    """Import name of each plugin -> its ``[project]`` table."""
    found = {}
    for file in sorted(ROOT.glob("plugins/*/*/pyproject.toml")):
        settings = tomllib.loads(file.read_text())
        found[settings["tool"]["flit"]["module"]["name"]] = settings["project"]
    return found


def declared(project):
    """Import names of the plugins that a project depends on."""
    return sorted(filter(None, map(package_of, project["dependencies"])))


def private_modules():
    """Every module and package directly in the core but those of ``PUBLIC``."""
    names = {
        path.stem for path in (ROOT / "erniecore").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    return [f"erniecore.{name}" for name in sorted(names - {"__init__", "__main__", *PUBLIC})]


def configuration():
    """The text of a settings file for import-linter."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    plugins = projects()
    contracts = [*settings["contracts"]]
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    foreign = [name for name in plugins if name not in declared(core)]
    contracts.append({"name": "The core imports no plugin", "type": "forbidden", "source_modules": ["erniecore"],
                      "forbidden_modules": foreign})  # fmt: skip
    contracts.append({"name": "Plugins see the core's public modules alone", "type": "forbidden",
                      "source_modules": list(plugins), "forbidden_modules": private_modules(),
                      "allow_indirect_imports": True})  # fmt: skip
    contracts.append({"name": "No cycles between the files of a plugin", "type": "acyclic_siblings",
                      "ancestors": list(plugins)})  # fmt: skip
    edges = [
        f"{name}.** -> {target}"
        for name, project in plugins.items()
        for other in declared(project)
        for target in (other, f"{other}.**")
    ]
    contracts.append({"name": "Plugins import one another only as declared", "type": "independence",
                      "modules": foreign, "ignore_imports": edges,
                      "unmatched_ignore_imports_alerting": "none"})  # fmt: skip
    lines = [
        "[tool.importlinter]",
        f"root_packages = {['erniecore', *plugins]}",
        "exclude_type_checking_imports = true",
    ]
    for contract in contracts:
        lines += ["[[tool.importlinter.contracts]]", *(f"{key} = {_toml(value)}" for key, value in contract.items())]
    return "\n".join(lines) + "\n"


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else repr(value)


def main():
    """Run import-linter on all contracts; returns its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "pyproject.toml"
        file.write_text(configuration())
        program = Path(sys.executable).with_name("lint-imports")
        return subprocess.run([str(program), "--no-cache", "--config", str(file)], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
