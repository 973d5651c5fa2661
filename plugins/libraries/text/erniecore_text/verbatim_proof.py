"""Whether a chat template writes texts as they are and never looks at them, read off its syntax tree. Only jinja2.

What is not plainly so is not proven.
"""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import nodes

#: texts of a message, and tests and loop variables that may be used freely
_TEXTS = frozenset(["content", "reasoning_content"])
_KINDS = frozenset(["defined", "undefined", "none", "string"])
_LOOP = frozenset(["index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0"])


def is_verbatim(tree: nodes.Template) -> bool:
    """Whether texts of messages are only written and tested for being empty. For conversations without tools or calls."""
    over = [n for n in tree.find_all(nodes.For) if isinstance(n.iter, nodes.Name) and n.iter.name == "messages"]
    targets = [n.target for n in over]
    bound = {t.name for t in targets if isinstance(t, nodes.Name)}
    own = {id(t) for t in targets}
    for name in tree.find_all(nodes.Name):
        rebound = name.ctx != "load" and id(name) not in own and name.name in bound | {"messages", "loop"}
        if rebound or name.ctx == "param":
            return False
    return _Check(bound).all(tree.body)


class _Check:
    """One template. ``bound``: names that stand for a message."""

    def __init__(self, bound: set[str]) -> None:
        self._bound = bound

    def all(self, body: Sequence[nodes.Node]) -> bool:
        """Whether statements keep the promise; kinds that are not known here do not."""
        return all(self._statement(node) for node in body)

    def _statement(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Output):
            return all(map(self._written, node.nodes))
        if isinstance(node, nodes.If):
            return self._test(node.test) and self.all([*node.body, *node.elif_, *node.else_])
        if isinstance(node, nodes.For):
            each = _is_messages(node.iter) and isinstance(node.target, nodes.Name)
            over = each or self._is_part(node.iter, "tool_calls") or self._free(node.iter)
            chosen = node.test is None or self._test(node.test)
            return over and chosen and not node.recursive and self.all([*node.body, *node.else_])
        if isinstance(node, nodes.Assign):
            return self._free(node.node)
        return isinstance(node, nodes.Break | nodes.Continue)

    def _written(self, node: nodes.Node | None) -> bool:
        """What is put out as it is."""
        if isinstance(node, nodes.Concat):
            return all(map(self._written, node.nodes))
        if isinstance(node, nodes.Add):
            return self._written(node.left) and self._written(node.right)
        if isinstance(node, nodes.CondExpr):
            return self._test(node.test) and self._written(node.expr1) and self._written(node.expr2)
        return node is None or self._is_part(node, *_TEXTS) or self._free(node)

    def _test(self, node: nodes.Node) -> bool:
        """What decides by being there, or empty, or not."""
        if isinstance(node, nodes.And | nodes.Or):
            return self._test(node.left) and self._test(node.right)
        if isinstance(node, nodes.Not):
            return self._test(node.node)
        if isinstance(node, nodes.Test) and node.name in _KINDS:
            return self._test(node.node)
        return _is_messages(node) or self._is_part(node, "tool_calls", *_TEXTS) or self._free(node)

    def _free(self, node: nodes.Node) -> bool:
        """What no text can reach."""
        if self._is_part(node, "role") or _is_count(node):
            return True
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            return node.attr in _LOOP
        if isinstance(node, nodes.Name):
            return node.name not in self._bound | {"messages", "loop", "self"}
        return all(map(self._free, node.iter_child_nodes()))

    def _is_part(self, node: nodes.Node, *keys: str) -> bool:
        """``message[key]`` or ``message.key``."""
        if isinstance(node, nodes.Getattr):
            return node.attr in keys and self._is_message(node.node)
        key = node.arg if isinstance(node, nodes.Getitem) else None
        return isinstance(key, nodes.Const) and key.value in keys and self._is_message(node.node)  # type: ignore[attr-defined]

    def _is_message(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Name):
            return node.name in self._bound
        if not (isinstance(node, nodes.Getitem) and _is_messages(node.node)):
            return False
        index = node.arg.node if isinstance(node.arg, nodes.Neg) else node.arg
        return isinstance(index, nodes.Const) and isinstance(index.value, int)


def _is_messages(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "messages"


def _is_count(node: nodes.Node) -> bool:
    """``messages | length``."""
    return isinstance(node, nodes.Filter) and node.name in ("length", "count") and _is_messages(node.node or node)
