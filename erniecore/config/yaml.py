"""Files of YAML 1.2 as settings use it: the core schema, a line for every key, and limits. Not a general YAML reader; what a
single value means is in ``values.py``.

Unlike PyYAML's own loaders (YAML 1.1), ``1e-5`` is a number, ``on``, ``yes`` and ``2024-01-01`` are text, and a key
given twice is an error. Tags, merge keys and several documents are refused; size, depth and what aliases expand to
are limited, so that a hostile file ends in an error and not in a full memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from erniecore.config.values import Document, Path, plain_scalar
from erniecore.errors import ConfigError, Problem, shorten

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
#: nodes after the expansion of aliases
MAX_NODES = 50_000


_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """PyYAML's scanner and composer without its YAML 1.1 resolvers, and with a depth limit."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Builder:
    """Turns nodes into plain data and notes lines; raises ``MarkedYAMLError`` at what it does not take."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self.count = 0

    def build(self, node: Node, path: Path) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise _refused(node, f"more than {MAX_NODES} values, counting what aliases stand for")
        if len(path) > MAX_DEPTH:
            raise _refused(node, f"nested deeper than {MAX_DEPTH} levels, counting what aliases stand for")
        if isinstance(node, ScalarNode):
            return self.scalar(node)
        if isinstance(node, SequenceNode):
            self.expect(node, "seq")
            return [self.item(child, (*path, i)) for i, child in enumerate(node.value)]
        assert isinstance(node, MappingNode)
        self.expect(node, "map")
        return self.mapping(node, path)

    def item(self, node: Node, path: Path) -> Any:
        self.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            place = (*path, key)
            if key in result:
                raise _refused(key_node, f"key {key!r} is given twice; first in line {self.lines[place]}")
            self.lines[place] = key_node.start_mark.line + 1
            result[key] = self.build(value_node, place)
        return result

    def key(self, node: Node) -> str:
        key = self.build(node, ())
        if key == "<<" and isinstance(node, ScalarNode) and node.style is None:
            raise _refused(node, "merge keys (<<) are not part of YAML 1.2; use `extends: FILE`")
        if not isinstance(key, str):
            raise _refused(node, f"keys must be text (got {shorten(key)}); write it in quotes")
        return key

    def scalar(self, node: ScalarNode) -> Any:
        tag = node.tag.removeprefix(_TAG)
        if node.style is None and tag == "str" and not self.tagged(node):
            try:
                return plain_scalar(node.value)
            except ValueError as error:  # Python's limit for the digits of an integer
                raise _refused(node, f"a number of {len(node.value)} digits") from error
        if tag == "str":
            return node.value
        wanted: dict[str, type | tuple[type, ...]] = {
            "int": int, "float": (int, float), "bool": bool, "null": type(None),
        }  # fmt: skip
        value = plain_scalar(node.value)
        if tag not in wanted:
            raise _refused(node, f"tag {node.tag} is not allowed")
        if not isinstance(value, wanted[tag]) or (isinstance(value, bool) and tag != "bool"):
            raise _refused(node, f"{node.value!r} is not a {tag}")
        return float(value) if tag == "float" and isinstance(value, int) else value

    @staticmethod
    def tagged(node: ScalarNode) -> bool:
        """An explicit ``!!str`` before a plain scalar: the node then starts at the tag."""
        return node.start_mark.buffer is not None and node.start_mark.buffer[node.start_mark.pointer] == "!"

    @staticmethod
    def expect(node: Node, tag: str) -> None:
        if node.tag != _TAG + tag:
            raise _refused(node, f"tag {node.tag} is not allowed")


def _refused(node: Node, message: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=message, problem_mark=node.start_mark)


def parse(text: str, source: str) -> Document:
    """Parse a settings file.

    Args:
        text: the file's content; empty gives empty settings.
        source: what errors call the file.

    Raises:
        ConfigError: with the line, for anything that is not a single YAML mapping with text keys.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError([Problem(source, 0, "", f"larger than {MAX_BYTES >> 20} MiB; settings files are small")])
    builder = _Builder()
    data = _guarded(lambda: _build(text, builder), source)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError([Problem(source, 1, "", f"must be a mapping of sections (got {shorten(data)})")])
    return Document(data, builder.lines)


def parse_any(text: str, source: str) -> Any:
    """One value of any kind, such as ``[1, 2]``. Raises ``ConfigError``."""
    return _guarded(lambda: _build(text, _Builder()), source)


def _build(text: str, builder: _Builder) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else builder.build(node, ())
    finally:
        loader.dispose()


def _guarded(action: Callable[[], Any], source: str) -> Any:
    try:
        return action()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(filter(None, (error.problem, error.context and f"({error.context})")))
        if error.problem and error.problem.startswith("but found another document"):
            message = "more than one document (---)"
        if error.problem and error.problem.startswith("found character '\\t'"):
            message = "a tab; indent with spaces"
        raise ConfigError([Problem(source, mark.line + 1 if mark else 0, "", message)]) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([Problem(source, 0, "", " ".join(str(error).split()))]) from error
