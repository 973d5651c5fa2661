"""Who may import what, and what nobody may do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PRODUCT = sorted(
    p
    for top in ("erniecore", "plugins", "third_party_kernels", "examples")
    for p in (ROOT / top).rglob("*.py")
    if "tests" not in p.relative_to(ROOT).parts
)
PLUGIN_PACKAGES = sorted(p.parent.name for p in ROOT.glob("plugins/*/erniecore_*/__init__.py"))


def test_import_contracts_hold():
    result = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


def test_contracts_list_every_plugin():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert sorted(settings["root_packages"]) == ["erniecore", *PLUGIN_PACKAGES]
    for contract in settings["contracts"]:
        listed = contract.get("source_modules", []) + contract.get("forbidden_modules", [])
        if any(m in PLUGIN_PACKAGES for m in listed):
            assert set(PLUGIN_PACKAGES) <= set(listed), f"contract {contract['name']!r} misses a plugin"


BANNED = {
    r"^\s*(import|from) (pickle|dill|cloudpickle|shelve)\b": "pickle runs code when it is read",
    r"\bpaddle\.(load|save)\(": "paddle.load executes pickles",
    r"\byaml\.(load|unsafe_load|full_load)\(": "use erniecore.config.yaml",
    r"\bos\.environ\[[^\]]+\]\s*=": "environment belongs to Device.environment()",
    r"trust_remote_code\s*=\s*True": "remote code is never run",
    r"\bshell\s*=\s*True": "no shell",
}
#: the one place that applies the environment
ALLOWED = {"erniecore/engine/launch.py": r"\bos\.environ\[[^\]]+\]\s*="}


@pytest.mark.parametrize("pattern", BANNED)
def test_no_unsafe_or_hidden_state(pattern):
    texts = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in PRODUCT}
    found = [n for n, t in texts.items() if ALLOWED.get(n) != pattern and re.search(pattern, t, flags=re.MULTILINE)]
    assert not found, f"{BANNED[pattern]}: {pattern} in {found}"


#: Packages of the core that may import paddle with themselves. The toys and mutants of the conformance kit are plugins:
#: ``plugin.py`` being light is a check of the kit, and some mutants exist to fail it.
HEAVY = ("erniecore.engine", "erniecore.ops", "erniecore.testing.toys", "erniecore.testing.mutants")
#: Modules that nobody imports by name: programs, templates of other packages, what pytest loads.
NOT_IMPORTED = ("erniecore.__main__", "erniecore.scaffold.templates", "erniecore.testing.pytest_plugin")


def test_heavy_modules_stay_out_of_light_ones():
    """Every module of the core outside ``HEAVY``, and every plugin.py and config.py, imports without paddle."""
    names = [str(p.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") for p in PRODUCT]
    modules = [m for m in names if _inside(m, "erniecore") and not any(_inside(m, p) for p in (*HEAVY, *NOT_IMPORTED))]
    modules += [f"{pkg}.{m}" for pkg in PLUGIN_PACKAGES for m in ("plugin", "config") if _exists(pkg, m)]
    code = (
        "import importlib, sys\n"
        f"for m in {modules!r}:\n"
        "    importlib.import_module(m)\n"
        "    assert 'paddle' not in sys.modules, m\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]


def _inside(module, package):
    return module == package or module.startswith(package + ".")


def _exists(package, module):
    return any(ROOT.glob(f"plugins/*/{package}/{module}.py"))


def test_tree_speaks_of_the_product_alone():
    """No paths of the machine that it was written on, no registry hosts."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True).stdout.split("\0")
    bad = re.compile(r"/work/(main|shared|envs)|pypi\.org|/root/|registry\.npmjs", re.IGNORECASE)
    hits = []
    for name in filter(None, tracked):
        path = ROOT / name
        if path.suffix in {".safetensors", ".png", ".model", ".gz"} or not path.is_file():
            continue
        if name == "tests/architecture/test_boundaries.py":
            continue
        hits += [
            f"{name}:{i}" for i, line in enumerate(path.read_text(errors="replace").splitlines(), 1) if bad.search(line)
        ]
    assert not hits
