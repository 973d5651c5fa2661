"""Plugins with one thing wrong each. A check that accepts its mutant checks nothing, so every check has at least
one here, and the tests assert that each mutant fails on exactly the checks that it names.

This is the table: check -> its mutants; it is built from one module per kind."""

from __future__ import annotations

from importlib import import_module

from erniecore.api.testing import KINDS
from erniecore_conformance.mutants.mutant import Mutant


def mutants_of(kind: str) -> tuple[Mutant, ...]:
    """Mutants for the checks of ``kind`` (``"every"`` for those of every kind)."""
    found: tuple[Mutant, ...] = import_module(f"erniecore_conformance.mutants.{kind}").MUTANTS
    return found


def all_mutants() -> tuple[Mutant, ...]:
    """All of them, the ones for every kind first."""
    return tuple(mutant for kind in ("every", *KINDS) for mutant in mutants_of(kind))
