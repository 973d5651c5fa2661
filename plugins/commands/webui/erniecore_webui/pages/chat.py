"""Chat with one model, or with two beside each other; conversations and choices become rows of training data.

The browser holds the conversation. What it sends goes on to the model's own server (``chats``), whose answer streams back.
"""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import ErnieError, UsageError
from erniecore.api.files import parse_json
from erniecore_webui.chats import MODEL
from erniecore_webui.relay import post
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.site import NAME, Site

_PANES = 2
_OFFERED = 300
#: of an answer, unless the model's context is short
_TOKENS = 512
#: directory below the root for rows that were saved
DATA = "data"
_ROLES = ("system", "user", "assistant", "tool")
_MESSAGE = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


def show(request: Request) -> Response:
    """The conversation; ``?model=A&model=B`` names who answers."""
    site = site_of(request)
    places = list(dict.fromkeys(place for place in request.query_params.getlist("model") if place))[:_PANES]
    offered = [place for place, found in site.models.found().items() if not found.is_adapter][:_OFFERED]
    panes = [_facts(site, place) for place in places]
    return page(
        request, "chat.html", current="chat", panes=panes, offered=offered,
        most=min([_TOKENS, *(pane["context"] // 2 for pane in panes if pane["context"])]),
        running=[chat for chat in site.chats.all() if chat.place not in places], data=site.models.place(site.root / DATA),
    )  # fmt: skip


def state(request: Request) -> Response:
    """How far the server of a model is."""
    return JSONResponse(_facts(site_of(request), request.query_params.get("model", "")))


def _facts(site: Site, place: str) -> dict[str, Any]:
    """``state``, ``task``, ``media``, ``context`` and ``said``: the end of what a server printed that failed."""
    chat = site.chats.of(place)
    try:
        model = site.models.describe(place)
        facts = {"place": place, "media": model.media, "context": model.context or 0}
    except ErnieError:
        model, facts = None, {"place": place, "media": False, "context": 0}
    if chat is None:
        return {**facts, "state": "missing" if model is None else "none", "task": "", "said": ""}
    said = chat.task.output(4 << 10) if chat.state == "failed" else ""
    return {**facts, "state": chat.state, "task": chat.task.name, "said": said}


async def act(request: Request) -> Response:
    """Start or stop the server of a model; then the page again."""
    site, given = site_of(request), await form(request)
    place, action = given.get("model", [""])[0], request.path_params["action"]
    if action == "start":
        site.models.path(place)
        await run_in_threadpool(site.chats.start, place)
    elif action == "stop":
        await run_in_threadpool(site.chats.stop, place)
    else:
        raise HTTPException(404)
    return RedirectResponse("/chat?" + urlencode([("model", one) for one in given.get("pane", [])]), 303)


async def answer(request: Request) -> Response:
    """The next message of a model, as server-sent events of its server."""
    site = site_of(request)
    asked = _object(await request.body())
    chat = await run_in_threadpool(site.chats.of, request.query_params.get("model", ""))
    if chat is None or chat.state != "ready":
        return JSONResponse({"error": {"message": "this model is not started"}}, 409)
    body = json.dumps({**asked, "model": MODEL, "stream": True}).encode()
    return await post(chat.port, "/v1/chat/completions", body, site.chats.key)


async def save(request: Request) -> Response:
    """Append a conversation, or a choice between two answers, to a file of rows below the root."""
    site, given = site_of(request), _object(await request.body())
    name = str(given.get("file", ""))
    if not NAME.fullmatch(name.removesuffix(".jsonl")):
        raise UsageError(
            "this is no name for a file", where=name, expected="letters, digits, dots, hyphens, underscores"
        )
    path = site.root / DATA / f"{name.removesuffix('.jsonl')}.jsonl"
    try:
        line = (json.dumps(row_of(given), ensure_ascii=False, allow_nan=False) + "\n").encode()
    except ValueError as error:  # halves of surrogate pairs too
        raise UsageError("this is no JSON that can be saved", where="messages", found=str(error)) from None
    path.parent.mkdir(exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)
    site.actions.audit(["tee", "-a", str(path)], bytes=len(line))
    return JSONResponse({"file": site.models.place(path)})


def row_of(given: dict[str, Any]) -> dict[str, Any]:
    """A row of the format ``messages``: a conversation that ends with an answer, or a prompt with two answers to it.

    Raises:
        UsageError: no such row.
    """
    messages = given.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UsageError("there is no message to save", where="messages")
    row: dict[str, Any] = {"messages": [_message(item) for item in messages]}
    choice = [key for key in ("chosen", "rejected") if key in given]
    if len(choice) == 1 or (row["messages"][-1]["role"] == "assistant") == bool(choice):
        raise UsageError(
            "this is no row", where="messages", expected="an answer at the end, or a prompt with two answers"
        )
    row |= {key: _message(given[key]) for key in choice}
    for said in [row[key] for key in choice] or row["messages"][-1:]:
        if not said["content"].strip() and not said.get("tool_calls"):
            raise UsageError("an empty answer teaches nothing", where="messages")
    return row


def _message(item: object) -> dict[str, Any]:
    if not isinstance(item, dict) or item.get("role") not in _ROLES or not isinstance(item.get("content"), str):
        raise UsageError("only messages of text can be saved", where="messages", found=str(item)[:80])
    return {key: item[key] for key in _MESSAGE if item.get(key)} | {"content": item["content"]}


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = parse_json(body)
    except (ValueError, RecursionError) as error:
        raise UsageError("this is no JSON", found=str(error)) from None
    if not isinstance(found, dict):
        raise UsageError("this is no JSON object")
    return found


def routes() -> list[Route]:
    """For the table of pages: GET shows, POST changes something."""
    return [
        Route("/chat", show),
        Route("/chat/state", state),
        Route("/chat/answer", answer, methods=["POST"]),
        Route("/chat/save", save, methods=["POST"]),
        Route("/chat/do/{action}", act, methods=["POST"]),
    ]
