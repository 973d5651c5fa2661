"""The public surface is frozen in a file, so that a change of it is a visible diff.

After a deliberate change: ``python tests/architecture/test_api_surface.py`` rewrites the file.
"""

import enum
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import erniecore
import erniecore.api

FROZEN = Path(__file__).with_name("api_surface.txt")


def describe(name, value):
    if isinstance(value, type) and not hasattr(value, "__origin__"):  # generic aliases are classes in Python 3.10
        if issubclass(value, BaseException | enum.Enum):
            return f"class {name}({', '.join(b.__name__ for b in value.__bases__)})"
        members = sorted(m for m in {*vars(value), *getattr(value, "__annotations__", {})} if not m.startswith("_"))
        return f"class {name}: {', '.join(members)}"
    if inspect.ismodule(value):
        return f"module {name}: {', '.join(sorted(value.__all__))}"
    if inspect.isfunction(value):
        return re.sub(r" at 0x\w+", "", f"def {name}{inspect.signature(value)}")
    return f"{name}: {type(value).__name__}"


def layers():
    """``erniecore.api`` and its modules."""
    names = sorted(info.name for info in pkgutil.iter_modules(erniecore.api.__path__))
    return [erniecore.api, *(importlib.import_module(f"erniecore.api.{name}") for name in names if name[0] != "_")]


def surface():
    lines = [f"{layer.__name__}.{describe(n, getattr(layer, n))}" for layer in layers() for n in sorted(layer.__all__)]
    lines += [
        f"erniecore.{describe(n, getattr(erniecore, n))}" for n in sorted(erniecore.__all__) if n != "__version__"
    ]
    return "\n".join(lines) + "\n"


def test_surface_is_as_frozen():
    assert surface() == FROZEN.read_text(), "public surface changed; if meant, run this file and add a CHANGELOG line"


def test_names_are_listed_once():
    for layer in layers():
        assert len(layer.__all__) == len(set(layer.__all__))


if __name__ == "__main__":
    FROZEN.write_text(surface())
