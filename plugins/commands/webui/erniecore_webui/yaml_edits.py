"""Single settings changed in the text of a YAML file: everything else, comments included, stays as somebody wrote it.

A setting has a path: a section, a key, and what is in it where a key has keys of its own (``callbacks.visualdl.every``). The
text is only looked at by PyYAML's composer, which knows where each value stands; what the settings mean and whether they are
right is for ``ernie`` to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from erniecore.api import UsageError
from erniecore.api.settings import MANY
from erniecore_webui.state_files import is_text

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
#: values that aliases may stand for in all, and levels of them; no settings have more
_MOST_VALUES, _MOST_LEVELS = 50_000, 32
_NOTHING = ("", "null", "~")
_NOT_TEXT = re.compile(r"(?i:true|false|null|~|[-+]?[0-9.].*)")


def read(text: str) -> dict[str, Any]:
    """The values of a text: section -> its content, scalars as they were written, ``~`` as ``null``.

    Raises:
        UsageError: it is no YAML mapping, or one that no settings are: keys that are no text, aliases that stand for too much.
    """
    root = _root(text)
    return dict(_value(root, [_MOST_VALUES], 0)) if root is not None else {}


def _value(node: Node, left: list[int], level: int) -> Any:
    """What a node says. ``left``: how many more values there may be."""
    left[0] -= 1
    if left[0] < 0 or level > _MOST_LEVELS:
        expected = f"at most {_MOST_VALUES} values in {_MOST_LEVELS} levels, counting what aliases stand for"
        raise UsageError("this is too much for settings", where=_line(node), expected=expected)
    if isinstance(node, SequenceNode):
        return [_value(item, left, level + 1) for item in node.value]
    if isinstance(node, ScalarNode):
        text = str(node.value)
        if not is_text(text):
            raise UsageError("half of a surrogate pair is no text", where=_line(node))
        return "null" if text == "~" and node.style is None else text
    found: dict[str, Any] = {}
    for key_node, value in node.value:
        if not isinstance(key_node, ScalarNode):
            raise UsageError("a key is no text", where=_line(key_node))
        key = _value(key_node, left, level + 1)
        if key in found:
            raise UsageError("a key is given twice", where=_line(key_node), found=key)
        found[key] = _value(value, left, level + 1)
    return found


def _line(node: Node) -> str:
    return f"line {node.start_mark.line + 1}"


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """``section.key`` -> value; a section that is one value, as in ``method: sft``, is its ``name``."""
    found: dict[str, Any] = {}
    for section, content in settings.items():
        if isinstance(content, Mapping):
            found.update({f"{section}.{key}": value for key, value in content.items()})
        elif content not in _NOTHING and not isinstance(content, list):
            found[f"{section}.name"] = content
    return found


def scalar(value: str) -> str:
    """Text as YAML, in quotes where it would be something else."""
    plain = _PLAIN.fullmatch(value) and not _NOT_TEXT.fullmatch(value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def value_at(settings: Mapping[str, Any], path: Sequence[str]) -> Any:
    """What :func:`read` found at a path; None where nothing is written."""
    node: Any = settings
    for depth, step in enumerate(path):
        if isinstance(node, Mapping):
            node = node.get(step)
        elif depth == 1 and path[0] in MANY:
            node = {} if step in names_of(node) else None
        else:
            short = depth == 1 and step == "name" and isinstance(node, str) and node not in _NOTHING
            return node if short else None
    return node


def names_of(content: Any) -> list[str]:
    """The plugins of a section with one sub-section per plugin, in any of its spellings."""
    if isinstance(content, Mapping):
        return list(content)
    items = [content] if isinstance(content, str) else content or []
    return [name for item in items for name in (item if isinstance(item, Mapping) else [item]) if name not in _NOTHING]


def changed(text: str, path: str | Sequence[str], value: str | None) -> str:
    """The text with one setting (``section.key`` or its path) set to a value, given as YAML of one line, or without it (None).

    Raises:
        UsageError: the text is no YAML mapping, or so written that only a person can change it.
    """
    path = path.split(".") if isinstance(path, str) else path
    new = _set(text, path, value) if value is not None else _removed(text, path)
    # the text is read first: a value that is no YAML breaks it
    found = value_at(read(new), path)
    wanted = None if value is None else read(f"v: {value}").get("v")
    if found != wanted:
        where = ".".join(path)
        raise UsageError("this setting is written in a way that only you can change", where=where, fix="edit the YAML")
    return new


def with_names(text: str, section: str, names: Sequence[str]) -> str:
    """The text with these plugins in a section with one sub-section per plugin; what is written for those that stay remains.

    Raises:
        UsageError: as for :func:`changed`.
    """
    content = read(text).get(section)
    if not isinstance(content, Mapping) or not content:
        return changed(text, (section,), "[" + ", ".join(map(scalar, names)) + "]" if names else None)
    for name in content.keys() - set(names):
        text = changed(text, (section, name), None)
    for name in names:
        text = text if name in content else changed(text, (section, name), "{}")
    return text


def _root(text: str) -> MappingNode | None:
    try:
        node = yaml.compose(text, yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError("this is no YAML", where=where, found=error.problem or "") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError("this is no YAML", found=type(error).__name__) from error
    if node is not None and not isinstance(node, MappingNode):
        raise UsageError("settings are sections with keys", expected="lines such as `model: {path: DIRECTORY}`")
    return node


def _find(node: MappingNode | None, name: str) -> tuple[Node, Node] | None:
    return next(((k, v) for k, v in node.value if k.value == name), None) if node else None


def _set(text: str, path: Sequence[str], value: str) -> str:
    node = _root(text)
    parent: Node | None = None
    for depth, step in enumerate(path):
        found, rest = _find(node, step), path[depth + 1 :]
        if found is None:
            return _with_key(text, parent, node, path[depth:], value)
        parent, child = found
        if not rest:
            return text[: parent.end_mark.index] + f": {value}" + text[_end(child) :]
        if not isinstance(child, MappingNode):
            new = _as_mapping(child, rest, value, path[0] in MANY) if depth == 0 or _is_nothing(child) else ""
            return text[: parent.end_mark.index] + f": {new}" + text[_end(child) :] if new else text
        node = child
    return text


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value in _NOTHING


def _as_mapping(node: Node, rest: Sequence[str], value: str, many: bool) -> str:
    """A section or key that is no mapping as one that also has a setting, e.g. ``method: sft`` with ``beta``; empty: only a
    person can do that."""
    if _is_nothing(node):
        return "{" + _nested(rest, value) + "}"
    if many and (not isinstance(node, SequenceNode) or all(isinstance(item, ScalarNode) for item in node.value)):
        names = [name for name in names_of(_value(node, [_MOST_VALUES], 0)) if name != rest[0]]
        return "{" + ", ".join([*(f"{scalar(name)}: {{}}" for name in names), _nested(rest, value)]) + "}"
    if many or not isinstance(node, ScalarNode):
        return ""
    return value if list(rest) == ["name"] else "{" + f"name: {scalar(node.value)}, {_nested(rest, value)}" + "}"


def _nested(path: Sequence[str], value: str) -> str:
    """``a: {b: VALUE}`` of a path."""
    inner = value if len(path) == 1 else "{" + _nested(path[1:], value) + "}"
    return f"{scalar(path[0])}: {inner}"


def _with_key(text: str, key: Node | None, node: MappingNode | None, path: Sequence[str], value: str) -> str:
    """A new key at the end of a mapping, the one of ``key``; without one the document."""
    if node is None or (key is None and not node.flow_style):  # a new section
        start = text + ("" if not text or text.endswith("\n") else "\n") + f"{scalar(path[0])}:"
        return start + (f" {value}\n" if len(path) == 1 else f"\n  {_nested(path[1:], value)}\n")
    line = _nested(path, value)
    if node.flow_style or not node.value:
        at = _end(node.value[-1][1]) if node.value else int(node.end_mark.index) - 1
        return text[:at] + (", " if node.value else "") + line + text[at:]
    at = _line_end(text, _end(node.value[-1][1]))
    return text[:at] + "\n" + " " * int(node.value[0][0].start_mark.column) + line + text[at:]


def _removed(text: str, path: Sequence[str]) -> str:
    node: Node | None = _root(text)
    chain: list[tuple[MappingNode, Node, Node]] = []
    for step in path:
        found = _find(node, step) if isinstance(node, MappingNode) else None
        if found is None or not isinstance(node, MappingNode):
            break
        chain.append((node, *found))
        node = found[1]
    # a plugin without its name has no other settings either
    whole = list(path[1:]) == ["name"] and len(chain) >= 1
    if not whole and len(chain) < len(path):
        return text
    at = 0 if whole else len(chain) - 1
    while at > 0 and len(chain[at][0].value) == 1:
        if at == 2 and path[0] in MANY:  # the plugin stays
            _, key, value = chain[1]
            return text[: key.end_mark.index] + ": {}" + text[_end(value) :]
        at -= 1
    parent, key, value = chain[at]
    if parent.flow_style:
        rest = [f"{text[k.start_mark.index : _end(v)]}" for k, v in parent.value if k is not key]
        return text[: parent.start_mark.index] + "{" + ", ".join(rest) + "}" + text[parent.end_mark.index :]
    start = key.start_mark.index - key.start_mark.column
    return text[:start] + text[_line_end(text, _end(value)) + 1 :]


def _end(node: Node) -> int:
    """Behind the last character of a value; PyYAML ends blocks where the next one begins."""
    if not isinstance(node, CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def leaves(settings: Mapping[str, Any]) -> Iterator[str]:
    """Every text in it, e.g. for those that are paths."""
    for value in settings.values():
        yield from _leaves(value)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from leaves(value)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield str(value)
