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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from erniecore.api import ErnieError, UsageError
from erniecore.api.files import parse_json
from erniecore_webui.chat_rows import ADDRESS, DATA, image_path, image_type, keep_image, row_of, with_images
from erniecore_webui.chats import MODEL
from erniecore_webui.relay import post
from erniecore_webui.rendering import form, page, site_of
from erniecore_webui.site import NAME, Site

_PANES = 2
_OFFERED = 300
#: of an answer, unless the model's context is short
_TOKENS = 512


def show(request: Request) -> Response:
    """The conversation; ``?model=A&model=B`` names who answers."""
    site = site_of(request)
    # the same one twice gives two answers to choose between
    places = [place for place in request.query_params.getlist("model") if place][:_PANES]
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
    messages = await run_in_threadpool(with_images, site.root, asked.get("messages"))
    body = json.dumps({**asked, "messages": messages, "model": MODEL, "stream": True}).encode()
    return await post(chat.port, "/v1/chat/completions", body, site.chats.key)


async def attach(request: Request) -> Response:
    """Keep an image; its address, by which messages name it."""
    site = site_of(request)
    try:
        url = await keep_image(site.root, request.stream(), int(request.headers["content-length"]))
    except ClientDisconnect:
        return Response(status_code=400)
    path = image_path(site.root, url.removeprefix(ADDRESS))
    assert path is not None
    await run_in_threadpool(site.actions.audit, ["upload", site.models.place(path)], bytes=path.stat().st_size)
    return JSONResponse({"url": url})


def image(request: Request) -> Response:
    """An image that was attached."""
    path = image_path(site_of(request).root, request.path_params["name"])
    if path is None:
        raise HTTPException(404)
    return FileResponse(path, media_type=image_type(path), headers={"cache-control": "private, max-age=86400"})


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
        Route("/chat/image", attach, methods=["POST"]),
        Route(ADDRESS + "{name}", image),
        Route("/chat/do/{action}", act, methods=["POST"]),
    ]
