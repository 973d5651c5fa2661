"""Where the values of loaded settings were written, for ``config show``, ``resolved.yaml`` and errors about a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from erniecore.config.settings import RunSettings, own_keys, values
from erniecore.config.tree import COMMAND_LINE, DEFAULT, Leaf, Place, Tree, place_of
from erniecore.errors import ConfigError, Problem
from erniecore.kinds import MANY


class Provenance(Mapping[str, str]):
    """``section.key`` -> where its value comes from, e.g. ``run.yaml:4``, ``command line``, ``default``."""

    def __init__(self, settings: RunSettings, tree: Tree, defaults: Tree) -> None:
        self._tree: Tree = {name: own_keys(name, node) if name in MANY else node for name, node in tree.items()}
        self._sources = {
            ".".join(path): str(_place(self._tree, path) or _place(defaults, path) or DEFAULT)
            for path, _ in values(settings)
        }

    def __getitem__(self, key: str) -> str:
        return self._sources[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def located(self, error: ConfigError) -> ConfigError:
        """``error`` with the source of each key that was reported without one."""
        return ConfigError([self._located(problem) for problem in error.problems])

    def _located(self, problem: Problem) -> Problem:
        if problem.source != "settings":
            return replace(problem)
        path = problem.key.split(".")
        written = path[0] in self._tree  # else nobody wrote this section, and no argument for another one is to blame
        place = place_of(self._tree, path) if problem.key and written else None
        if place is not None:
            return place.problem(problem.key, problem.message)
        return Problem(COMMAND_LINE if path[0].startswith("-") else DEFAULT, 0, problem.key, problem.message)


def _place(tree: Tree, path: Sequence[str]) -> Place | None:
    node: Leaf | Tree | None = tree
    for part in path:
        if node is None or isinstance(node, Leaf):  # a leaf on the way is an empty section: all defaults
            return None
        node = node.get(part)
    return node.place if isinstance(node, Leaf) else None
