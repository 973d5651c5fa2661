"""The prompts of an export: as the model was trained on, as the installed servers give them to it, and as transformers renders
the files that were written. A difference ends the export, so that nobody serves another prompt than the one that was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from erniecore_text.proof import Policy, Proof

from erniecore.api import Json
from erniecore.api.command import open_tokenizer
from erniecore.api.data import Message
from erniecore.api.export import Tokenizer
from erniecore.api.installation import assemble, loadable

#: the hook by which servers render
HOOK = "ernie_render_prompt"


def prove_prompts(
    tokenizer: Tokenizer | None,
    directory: Path,
    *,
    run: Path | None = None,
    policy: Policy = "error",
    told: list[str] | None = None,
) -> None:
    """Compare the prompts of rows token by token.

    Args:
        tokenizer: of the model before the export. directory: what was written. run: what was exported, by which its run is
            found. told: gets what the user should know.

    Raises:
        CheckpointError: ``ERN-K031``, a prompt differs, and ``policy`` is ``error``.
    """
    if tokenizer is None or not (directory / "tokenizer.model").is_file():
        lines = ["prompts: not compared: the export has no tokenizer files"]
    else:
        written, _ = open_tokenizer(directory)
        servers = {f"the server {name}": partial(render, written) for name, render in _servers().items()}
        with Proof(
            directory, written, option="--prompt-differences warn", trained=tokenizer, run=run, servers=servers
        ) as proof:
            lines = proof.finish(policy)
    if told is not None:
        told += lines


def _servers() -> Mapping[str, Callable[[Tokenizer, Sequence[Message], Sequence[Json], bool | None], Sequence[int]]]:
    """Installed servers that say what they give their model."""
    found = {}
    for plugin in loadable("server"):
        host = assemble({"server": plugin})
        if host.implementations(HOOK):
            found[plugin.name] = partial(_rendered, partial(host.call, plugin, HOOK))
    return found


def _rendered(
    call: Callable[..., Sequence[int]],
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Json],
    thinking: bool | None,
) -> Sequence[int]:
    return call(tokenizer=tokenizer, messages=messages, tools=tools, thinking=thinking)
