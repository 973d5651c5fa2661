"""Single settings changed in the text of a YAML file: everything else, comments included, stays as somebody wrote it.

Settings have two levels, ``section.key``. The text is only looked at by PyYAML's composer, which knows where each value stands;
what the settings mean and whether they are right is for ``ernie`` to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from erniecore.api import UsageError
from erniecore_webui.state_files import is_text

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")
#: values that aliases may stand for in all, and levels of them; no settings have more
_MOST_VALUES, _MOST_LEVELS = 50_000, 32
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
        elif content not in ("", "null", "~"):
            found[f"{section}.name"] = content
    return found


def scalar(value: str) -> str:
    """Text as YAML, in quotes where it would be something else."""
    plain = _PLAIN.fullmatch(value) and not _NOT_TEXT.fullmatch(value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def changed(text: str, key: str, value: str | None) -> str:
    """The text with ``section.key`` set to a value, given as YAML of one line, or without it (None).

    Raises:
        UsageError: the text is no YAML mapping, or so written that only a person can change it.
    """
    section, _, name = key.partition(".")
    new = _set(text, section, name, value) if value is not None else _removed(text, section, name)
    # the text is read first: a value that is no YAML breaks it
    found = flat(read(new)).get(key)
    wanted = None if value is None else read(f"v: {value}").get("v")
    if found != wanted:
        raise UsageError("this setting is written in a way that only you can change", where=key, fix="edit the YAML")
    return new


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


def _set(text: str, section: str, name: str, value: str) -> str:
    root = _root(text)
    found = _find(root, section)
    if found is None:
        return _added(
            text, root, section, "{" + f"{name}: {value}" + "}" if root and root.flow_style else "", name, value
        )
    key, node = found
    if isinstance(node, MappingNode):
        inside = _find(node, name)
        if inside is None:
            return _with_key(text, key, node, f"{name}: {value}")
        return text[: inside[0].end_mark.index] + f": {value}" + text[_end(inside[1]) :]
    if not isinstance(node, ScalarNode):
        return text
    old = "" if node.value in ("", "null", "~") else f"name: {scalar(node.value)}, "
    new = value if name == "name" and old else "{" + ("" if name == "name" else old) + f"{name}: {value}" + "}"
    return text[: key.end_mark.index] + f": {new}" + text[_end(node) :]


def _added(text: str, root: MappingNode | None, section: str, flow: str, name: str, value: str) -> str:
    """A new section, at the end."""
    if root is not None and root.flow_style:
        at = _end(root.value[-1][1]) if root.value else root.end_mark.index - 1
        return text[:at] + (", " if root.value else "") + f"{section}: {flow}" + text[at:]
    return text + ("" if not text or text.endswith("\n") else "\n") + f"{section}:\n  {name}: {value}\n"


def _with_key(text: str, key: Node, node: MappingNode, line: str) -> str:
    if node.flow_style or not node.value:
        at = _end(node.value[-1][1]) if node.value else int(node.end_mark.index) - 1
        return text[:at] + (", " if node.value else "") + line + text[at:]
    at = _line_end(text, _end(node.value[-1][1]))
    return text[:at] + "\n" + " " * int(node.value[0][0].start_mark.column) + line + text[at:]


def _removed(text: str, section: str, name: str) -> str:
    root = _root(text)
    found = _find(root, section)
    if found is None or root is None:
        return text
    parent, pair = root, found
    # a plugin without its name has no other settings either
    if isinstance(found[1], MappingNode) and name != "name":
        inside = _find(found[1], name)
        if inside is None:
            return text
        if len(found[1].value) > 1:
            parent, pair = found[1], inside
    if parent.flow_style:
        rest = [f"{text[k.start_mark.index : _end(v)]}" for k, v in parent.value if k is not pair[0]]
        return text[: parent.start_mark.index] + "{" + ", ".join(rest) + "}" + text[parent.end_mark.index :]
    start = pair[0].start_mark.index - pair[0].start_mark.column
    return text[:start] + text[_line_end(text, _end(pair[1])) + 1 :]


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
