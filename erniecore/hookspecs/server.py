"""Hooks of servers. See ``erniecore.hookspecs`` for the rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.hookspecs.marker import hookspec

if TYPE_CHECKING:
    from erniecore.sections import Section
    from erniecore.types.records import Json, Message
    from erniecore.types.text import Tokenizer


class ServerHooks:
    """One provider: the server that ``--backend`` names. Called outside a run."""

    @hookspec(firstresult=True)
    def ernie_serve(self, config: Section, directory: Path) -> int:
        """Serve the model in ``directory`` until stopped; returns the exit code.

        Example::

            @hookimpl
            def ernie_serve(self, config, directory):
                return run_server(directory, host=config.host, port=config.port)
        """

    @hookspec(firstresult=True)
    def ernie_render_prompt(
        self, tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Json], thinking: bool | None
    ) -> Sequence[int]:
        """Optional. Token ids that the server gives its model for a conversation, by the code that answers requests; called for
        a few rows, which are compared with those of training. Raises an ``ErnieError`` for one that it refuses.

        Example::

            @hookimpl
            def ernie_render_prompt(self, tokenizer, messages, tools, thinking):
                return prompt_of(request_of(messages, tools, thinking), tokenizer)
        """
