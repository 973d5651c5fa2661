"""Who may import what, and what nobody may do."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = sorted(
    p
    for top in ("erniecore", "plugins", "third_party_kernels", "examples")
    for p in (ROOT / top).rglob("*.py")
    if "tests" not in p.relative_to(ROOT).parts
)
PLUGIN_PACKAGES = sorted(p.parent.name for p in ROOT.glob("plugins/*/*/erniecore_*/__init__.py"))


def test_import_contracts_hold():
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("contracts.py"))], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-2000:]


BANNED = {
    r"^\s*(import|from) (pickle|dill|cloudpickle|shelve)\b": "pickle runs code when it is read",
    r"\bpaddle\.(load|save)\(": "paddle.load executes pickles",
    r"\byaml\.(load|unsafe_load|full_load)\(": "use erniecore.config.yaml",
    r"\bos\.environ\[[^\]]+\]\s*=": "environment belongs to Device.environment()",
    r"trust_remote_code\s*=\s*True": "remote code is never run",
    r"\bshell\s*=\s*True": "no shell",
    r"import_module\(\s*['\"]erniecore": "the import contracts do not see it",
}
ALLOWED = {
    # the one place that applies the environment
    "erniecore/engine/launch.py": r"\bos\.environ\[[^\]]+\]\s*=",
    # the plugin files of a process are handed to the processes that it starts in a variable of our own
    "erniecore/plugin_files/__init__.py": r"\bos\.environ\[[^\]]+\]\s*=",
    # the package's own names, whose modules are imported when they are first used
    "erniecore/__init__.py": r"import_module\(\s*['\"]erniecore",
}


@pytest.mark.parametrize("pattern", BANNED)
def test_no_unsafe_or_hidden_state(pattern):
    texts = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in PRODUCT}
    found = [n for n, t in texts.items() if ALLOWED.get(n) != pattern and re.search(pattern, t, flags=re.MULTILINE)]
    assert not found, f"{BANNED[pattern]}: {pattern} in {found}"


#: Packages of the core that may import paddle with themselves. ``BLOCKS`` are the building blocks of the public interface.
BLOCKS = tuple(
    f"erniecore.api.{layer}"
    for layer in ("adamw", "decoding", "generation", "layers", "model_files", "ops", "scoring", "training")
)
HEAVY = ("erniecore.engine", "erniecore_ops", *BLOCKS)
#: A program, which nobody imports by name.
NOT_IMPORTED = ("erniecore.__main__",)


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
    return any(ROOT.glob(f"plugins/*/*/{package}/{module}.py"))


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
