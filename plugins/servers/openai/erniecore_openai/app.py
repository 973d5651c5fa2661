"""The ASGI application: routes, errors, the API key and the count of answers. Serves nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from erniecore_openai.description import RESPONSES, describe
from erniecore_openai.errors import add_handlers
from erniecore_openai.metrics import Metrics
from erniecore_openai.routes import chat, completions, operations, tokens
from erniecore_openai.schemas.chat import ChatRequest
from erniecore_openai.schemas.common import Schema
from erniecore_openai.schemas.completions import AbortRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from erniecore_openai.security import Guard
from erniecore_openai.state import Serving

#: What each route reads; names of its fields are offered for one that is misspelt.
BODIES: Mapping[str, type[Schema]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/v1/abort": AbortRequest,
}


def make_app(serving: Serving, key: str = "") -> FastAPI:
    """The application for what ``serving`` holds; ``/openapi.json`` describes it.

    Args:
        key: that clients must send; ``""``: none.
    """
    app = FastAPI(
        title="erniecore",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        responses=dict(RESPONSES),
    )
    app.state.serving = serving
    app.state.fields = {path: tuple(model.model_fields) for path, model in BODIES.items()}
    for part in (chat, completions, tokens, operations):
        app.include_router(part.router)
    add_handlers(app)
    app.openapi = partial(describe, app)  # type: ignore[method-assign]  # as FastAPI's documentation has it
    app.add_middleware(Guard, key=key)
    app.add_middleware(Counted, metrics=serving.metrics)
    return app


class Counted:
    """ASGI middleware that counts answers by status."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and look at what is sent."""

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.answered(message["status"])
            await send(message)

        await self._app(scope, receive, counting if scope["type"] == "http" else send)
