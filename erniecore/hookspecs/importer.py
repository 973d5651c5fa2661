"""Hooks of importers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.types.importing import ForeignKeys, Imported, ImportTarget


class ImporterHooks:
    """Called before a run, and by ``ernie config``, when a settings file has no section of ours. No paddle."""

    @hookspec(firstresult=True)
    def ernie_match_settings(self, content: Mapping[str, Any]) -> int:
        """How many keys of a parsed file the toolkit has; 0 where the file is not its own. Called once per file on every
        installed importer: the one with the most keys imports it. Pure, cheap.

        Example::

            @hookimpl
            def ernie_match_settings(self, content):
                return TABLE.match(content)
        """

    @hookspec(firstresult=True)
    def ernie_import_settings(self, content: Mapping[str, Any], target: ImportTarget) -> Imported:
        """What each key of a parsed file becomes, overrides of the command line included. Raises nothing for a bad value:
        it goes into ``Imported.problems``. May read the files that the settings name; changes none.

        Example::

            @hookimpl
            def ernie_import_settings(self, content):
                return convert_each(TABLE, content)
        """

    @hookspec(firstresult=True)
    def ernie_describe_keys(self) -> ForeignKeys:
        """Every key of the toolkit with what becomes of it, for the reference and ``ernie config explain``.

        Example::

            @hookimpl
            def ernie_describe_keys(self):
                return TABLE
        """
