"""The server ``disaggregated``. Light: what serves is imported inside the hook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erniecore.api import Plugin, hookimpl
from erniecore_disaggregated.config import DisaggregatedConfig

if TYPE_CHECKING:
    from erniecore.api import Json
    from erniecore.api.data import Message
    from erniecore.api.model import Tokenizer


class DisaggregatedServer(Plugin):
    """OpenAI's HTTP interface over processes for prompts and processes for completions."""

    kind = "server"
    name = "disaggregated"
    summary = "OpenAI's HTTP interface over prefill and decode processes that change roles"
    Config = DisaggregatedConfig

    @hookimpl
    def ernie_serve(self, config: DisaggregatedConfig, directory: Path) -> int:
        """Serve until a signal. Raises ``UsageError`` for no model, and ``EnvironmentFault`` for an address that is taken
        or processes that do not start."""
        from erniecore_disaggregated.serving import serve

        return serve(config, directory)

    @hookimpl
    def ernie_render_prompt(
        self, tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Json], thinking: bool | None
    ) -> Sequence[int]:
        """Token ids of a conversation by the code of the routes. Raises ``UsageError`` for one that is refused."""
        from erniecore_openai.rows import row_prompt

        return row_prompt(tokenizer, messages, tools, thinking)


plugin = DisaggregatedServer()
