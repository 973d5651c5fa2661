"""The pages of ``docs/reference/api``: one per module of ``erniecore.api``. A page opens with a complete plugin of the kind
that the module is for (``docs/examples``, or a toy of the conformance kit), and lists every public name with its docstring.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import erniecore.api

ROOT = Path(__file__).parents[1]
TOYS = ROOT / "plugins" / "commands" / "conformance" / "erniecore_conformance" / "toys"
#: module of the public interface -> its example; toys where one serves the page and the conformance kit
EXAMPLES = {path.stem: path for path in sorted((ROOT / "docs" / "examples").glob("*.py"))}
EXAMPLES |= {name: TOYS / f"{name}.py" for name in ("importer", "kernels")}
WAYS = """Python users need the package `erniecore` only: `run`, `load_model`, `open_model`, `load_adapter`, `load_tokenizer`,
`generate` and `export`. A plugin imports the layer of its kind, and from `erniecore.api` the names that all kinds share."""


#: module -> name -> a session of Python that uses it
SESSIONS = ROOT / "docs" / "examples" / "names"


def sessions(module: str) -> dict[str, str]:
    """The examples of single names of a module, from ``docs/examples/names/MODULE.txt``; executed by a test, in this order.
    ``## NAME`` begins the example of a name."""
    path = SESSIONS / f"{module}.txt"
    if not path.is_file():
        return {}
    parts = re.split(r"^## (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def explained(value: Any) -> str:
    """What stands in place of an example of one's own below what nobody calls; empty: it is called, and has an example."""
    if isinstance(value, type) and not hasattr(value, "__origin__"):
        if getattr(value, "_is_protocol", False):
            return "A protocol: any object with these members is one."
        if hasattr(value, "__required_keys__"):
            return "A dictionary with certain keys, for type checkers."
        if issubclass(value, enum.Enum | BaseException):
            return f"An {'enumeration' if issubclass(value, enum.Enum) else 'error'}."
        return ""
    return "" if inspect.isroutine(value) else f"A `{type(value).__name__}`."


def shown_above(module: str, name: str) -> bool:
    """Whether the example with which the page of a module begins uses a name."""
    example = EXAMPLES.get(module)
    return example is not None and re.search(rf"\b{name}\b", example.read_text(encoding="utf-8")) is not None


def session_block(text: str) -> list[str]:
    """An example as a block of the page; nothing without one."""
    return ["", "```pycon", text, "```"] if text else []


def layers() -> list[str]:
    """Names of the public modules."""
    return sorted(info.name for info in pkgutil.iter_modules(erniecore.api.__path__))


def pages(notice: str) -> dict[str, Callable[[], str]]:
    """Path -> what makes the page; ``README.md`` lists the others."""
    found: dict[str, Callable[[], str]] = {"docs/reference/api/README.md": partial(overview, notice)}
    return found | {f"docs/reference/api/{name}.md": partial(page, name, notice) for name in layers()}


def overview(notice: str) -> str:
    """What each module is for, and the names that every kind of plugin uses."""
    lines = [notice + "# The public interface", "", WAYS, "", "## Layers", ""]
    for name in layers():
        text = first_line(importlib.import_module(f"erniecore.api.{name}"))
        lines.append(f"* [`erniecore.api.{name}`]({name}.md): {text}")
    lines += ["", "## erniecore.api", "", "Names for plugins of every kind:", ""]
    for public in sorted(erniecore.api.__all__, key=str.lower):
        value = getattr(erniecore.api, public)
        ours = isinstance(value, ModuleType) or getattr(value, "__module__", "").startswith("erniecore")
        text = first_line(value) if ours else ""
        lines.append(f"* `{public}`: {text}" if text else f"* `{public}`")
    lines += ["", "## Examples", ""]
    for public, example in sessions("erniecore.api").items():
        value = getattr(erniecore.api, public)
        lines += [f"### {public}", "", *(signature(public, value) if inspect.isfunction(value) else [])]
        lines += [*session_block(example)[1:], ""]
    lines.pop()
    return "\n".join(lines) + "\n"


def page(name: str, notice: str) -> str:
    """The page of one module: its docstring, its example and its names."""
    module = importlib.import_module(f"erniecore.api.{name}")
    lines = [notice + f"# erniecore.api.{name}", "", inspect.getdoc(module) or "", ""]
    if example := EXAMPLES.get(name):
        lines += [
            "## Example",
            "",
            "```python",
            example.read_text(encoding="utf-8").rstrip(),
            "```",
            "",
        ]
    lines += ["## Names", ""]
    if examples := sessions(f"erniecore.api.{name}"):
        file = f"examples/names/erniecore.api.{name}.txt"
        lines += [
            f"The examples are one session of Python, in the order of [this file](../../{file}); `base` is the directory of a"
        ]
        lines += ["small model, `train.jsonl` has conversations.", ""]
    for public in sorted(module.__all__, key=str.lower):
        value = getattr(module, public)
        lines += entry(public, value)
        if public in examples:
            lines += session_block(examples[public])
        elif inspect.isclass(value) and not hasattr(value, "__origin__") and (said := explained(value)):
            lines += ["", said]
        elif shown_above(name, public):
            lines += ["", "Used in the example above."]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def entry(name: str, value: Any) -> list[str]:
    """One public name: how it is called, its docstring, and the public methods of a class."""
    # a generic alias such as Mapping[str, int] is a type in Python 3.10
    if isinstance(value, type) and value.__module__ != "builtins" and not hasattr(value, "__origin__"):
        return [f"### class {name}", "", inspect.getdoc(value) or "", *_members(value)]
    if inspect.isfunction(value):
        return [f"### {name}({_parameters(value)})", "", *signature(name, value), "", inspect.getdoc(value) or ""]
    if isinstance(value, ModuleType):
        return [f"### module {name}", "", first_line(value)]
    return [f"### {name}", "", f"A `{type(value).__name__}`."]


def _members(cls: type) -> Iterator[str]:
    if issubclass(cls, BaseException):
        return
    if issubclass(cls, enum.Enum):
        yield ""
        yield from (f"* `{member.name}`: `{member.value}`" for member in cls)
        return
    for name, value in vars(cls).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if name.startswith("_") or not (inspect.isfunction(function) or isinstance(value, property)):
            continue
        called = name if isinstance(value, property) else f"{name}({_parameters(function)})"
        text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
        yield from ("", f"`{called}`: {text}" if text else f"`{called}`")


def signature(name: str, function: Any) -> list[str]:
    """How a function is called, with types and defaults, as a block of Python; long ones with a line for each parameter."""
    found = inspect.signature(function)
    written = list(_written(found))
    returned = "" if found.return_annotation is found.empty else f" -> {_type(found.return_annotation)}"
    text = f"{name}({', '.join(written)}){returned}"
    if len(text) > 100 and written:
        lines = "".join(f"    {parameter},\n" for parameter in written)
        text = f"{name}(\n{lines}){returned}"
    return ["```python", text, "```"]


def _written(found: inspect.Signature) -> Iterator[str]:
    """The parameters as they are written, with the bare ``*`` before those that are given by name."""
    starred = False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        typed = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        yield f"{stars}{parameter.name}{typed}{default if typed else default.replace(' ', '')}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value(default: Any) -> str:
    if inspect.isfunction(default) or isinstance(default, type):
        return str(default.__name__)
    return re.sub(r" at 0x\w+", "", repr(default))


def _parameters(function: Any) -> str:
    return ", ".join(
        f"{parameter.name}=…" if parameter.default is not parameter.empty else str(parameter.name)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in ("self", "cls")
    )


def first_line(module: object) -> str:
    """The first sentence or two of a docstring, on one line."""
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())
