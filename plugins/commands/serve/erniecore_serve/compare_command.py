"""``ernie compare-servers``: whether two servers with OpenAI's interface answer alike. Imports nothing heavy itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from erniecore.api import Exit, UsageError, counted
from erniecore.api.command import JsonOption, note, show_fields, show_json, store_text

_Url = Annotated[str, typer.Argument(metavar="URL", help="Address of a server, e.g. http://127.0.0.1:8000/v1.")]
_Other = Annotated[str, typer.Argument(metavar="OTHER", help="Address of the other server.")]
_Data = Annotated[list[str], typer.Option("--data", metavar="FILE", help="Conversations to ask for; may be repeated.")]
_Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Model of the first server [its first one].")]
_OtherModel = Annotated[str, typer.Option("--other-model", metavar="NAME", help="Model of the other one [its first].")]
_Key = Annotated[str, typer.Option("--key-file", metavar="FILE", help="API key of the first server [$ERNIE_API_KEY].")]
_OtherKey = Annotated[
    str, typer.Option("--other-key-file", metavar="FILE", help="API key of the other server; none without it.")
]
_Limit = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The first N rows.")]
_NewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="Maximum number of new tokens per answer.")]
_Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the report as JSON.")]
_Thinking = Annotated[bool | None, typer.Option("--thinking/--no-thinking", help="As chat templates have it.")]


def compare_servers(
    url: _Url,
    other: _Other,
    data: _Data,
    model: _Model = "",
    other_model: _OtherModel = "",
    key_file: _Key = "",
    other_key_file: _OtherKey = "",
    limit: _Limit = 32,
    max_new_tokens: _NewTokens = 64,
    thinking: _Thinking = None,
    out: _Out = None,
    as_json: JsonOption = False,
) -> int:
    """Send the same conversations to two servers, greedy, and report where their answers differ.

    Compared are prompts token by token where both tell them, texts, tool calls, counts of tokens, log-probabilities, streams with
    whole answers, and the status of requests that both should refuse. Exit code 5: an answer, a prompt or a stream differs.
    """
    from erniecore_serve.client import Client
    from erniecore_serve.comparing import report
    from erniecore_serve.keys import api_key

    clients = (
        Client(url, api_key(key_file), where="URL"),
        Client(other, api_key(other_key_file) if other_key_file else "", where="OTHER"),
    )
    names = [name or client.models()[0] for name, client in zip((model, other_model), clients, strict=True)]
    rows = list(islice(_requests(data, thinking), limit))
    if not rows:
        raise UsageError("no conversation to ask for", where="--data", found=", ".join(data))
    found = report(list(zip(clients, names, strict=True)), rows, max_new_tokens, note)
    if out is not None:
        import json

        store_text(out, json.dumps(found, ensure_ascii=False, indent=2) + "\n", "writing the report")
    show_json(found) if as_json else _show(found)
    same = found["equal"] == found["rows"] and found["a"]["stream_is_whole"] and found["b"]["stream_is_whole"]
    return int(Exit.OK if same else Exit.CHECKPOINT)


def _requests(files: list[str], thinking: bool | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """File and line, and the request for the last message of each conversation. Raises ``ErnieError`` for a bad row."""
    from erniecore_text.proof.requests import as_request
    from erniecore_text.proof.rows import row_of

    from erniecore.api.data import Origin
    from erniecore.api.rows import Source, parse, resolve

    for source in resolve([Source(path=file) for file in files], "auto"):
        for position, raw in source.parser.split(source.path):
            origin = Origin(source.file, position)
            row = row_of(parse(source, raw, origin), origin.place())
            if row is None:
                raise UsageError("this row is no conversation", where=origin.place())
            messages = row.messages[:-1] if row.messages[-1].role == "assistant" else row.messages
            yield row.where, as_request(messages, row.tools, thinking)


def _show(found: Mapping[str, Any]) -> None:
    gap = found["largest_logprob_difference"]
    fields = [(side, f"{found[side]['model']} at {found[side]['url']}") for side in ("a", "b")]
    fields += [("answers", f"{found['equal']} of {counted(found['rows'], 'row')} equal, {found['new_tokens']} tokens")]
    fields += [("log-probs", "not told by both" if gap is None else f"differ by at most {gap:.2g} before a difference")]
    fields += [
        ("stream", f"of {side} differs from its whole answer")
        for side in ("a", "b")
        if not found[side]["stream_is_whole"]
    ]
    for one in found["refusals"]:
        if one["a"] != one["b"]:
            fields.append(("refusal", f"{one['request']}: {one['a']} and {one['b']}"))
    for one in found["differences"][:8]:
        fields.append(("differs", f"{one['where']}: {_told(one)}"))
    if len(found["differences"]) > 8:
        fields.append(("", f"{len(found['differences']) - 8} more; --out FILE has all"))
    show_fields(fields)


def _told(one: Mapping[str, Any]) -> str:
    text = ", ".join(one["unequal"])
    if one["token"] is not None:
        text += f" from token {one['token']} on"
        known = [margin for margin in one["margins"] if margin is not None]
        text += f"; margins there {' and '.join(f'{margin:.2g}' for margin in known)}" if known else ""
    return text
