"""The public surface is frozen in a file, so that a change of it is a visible diff.

After a deliberate change: ``python tests/architecture/test_api_surface.py`` rewrites the file.
"""

import enum
import inspect
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
        return f"def {name}{inspect.signature(value)}"
    return f"{name}: {type(value).__name__}"


def surface():
    lines = [f"erniecore.api.{describe(n, getattr(erniecore.api, n))}" for n in sorted(erniecore.api.__all__)]
    lines += [
        f"erniecore.{describe(n, getattr(erniecore, n))}" for n in sorted(erniecore.__all__) if n != "__version__"
    ]
    return "\n".join(lines) + "\n"


def test_surface_is_as_frozen():
    assert surface() == FROZEN.read_text(), "public surface changed; if meant, run this file and add a CHANGELOG line"


def test_names_are_listed_once():
    assert len(erniecore.api.__all__) == len(set(erniecore.api.__all__))


if __name__ == "__main__":
    FROZEN.write_text(surface())
