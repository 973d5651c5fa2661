"""What operators ask: ``/health``, ``/metrics``, ``/v1/models`` and ``POST /v1/abort``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from erniecore_openai.schemas.completions import AbortRequest
from erniecore_openai.security import LimitedRoute
from erniecore_openai.state import ServedModel, Serving

router = APIRouter(route_class=LimitedRoute)
UNREADY: Mapping[int | str, dict[str, Any]] = {
    503: {
        "description": "Loading, draining or failed.",
        "content": {"application/json": {"schema": {"type": "object", "required": ["status"]}}},
        "model": None,
    }
}


@router.get("/health", operation_id="health", responses=dict(UNREADY))
async def health(request: Request) -> Any:
    """200 when requests are answered, 503 before and after that."""
    phase = request.app.state.serving.phase
    return JSONResponse({"status": phase}, 200 if phase == "ready" else 503)


@router.get("/metrics", operation_id="metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Numbers for Prometheus."""
    return Response(request.app.state.serving.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models", operation_id="list_models")
async def list_models(request: Request) -> Any:
    """The model that is served, then the adapters on it."""
    return {"object": "list", "data": [_told(model) for model in request.app.state.serving.models()]}


@router.get("/v1/models/{name:path}", operation_id="get_model")
async def get_model(request: Request, name: str) -> Any:
    """One of them by its name; 404 for another one."""
    serving: Serving = request.app.state.serving
    return _told(serving.model(name))


def _told(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name, "object": "model", "created": model.created, "owned_by": "erniecore",
        "max_model_len": model.context, "root": model.parent or model.name, "parent": model.parent or None,
    }  # fmt: skip


@router.post("/v1/abort", operation_id="abort")
async def abort(request: Request, asked: AbortRequest) -> Any:
    """End requests: their completions finish with the reason ``abort``. Answers with the ids that were found."""
    serving: Serving = request.app.state.serving
    return {"aborted": serving.abort(None if asked.abort_all else asked.req_ids)}
