"""What ``/openapi.json`` says beside the fields of requests: the errors of every route, and what answers are sent as."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

#: Statuses of errors; what those of a request that is wrong have in common is 400, never 422.
ERRORS = (400, 401, 404, 405, 408, 413, 429, 500, 503)


class ErrorDetail(BaseModel):
    """What is wrong, of which kind it is, the field of the request, and a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """An error as OpenAI's clients read it."""

    error: ErrorDetail


RESPONSES: Mapping[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": HTTPStatus(status).phrase} for status in ERRORS
}
#: Of routes that stream where the request says so.
STREAMED: Mapping[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "The answer, or its chunks."}
}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document. FastAPI would add its own form of 422, which no route of this server gives."""
    if app.openapi_schema is None:
        found = get_openapi(
            title=app.title, version=app.version, routes=app.routes, separate_input_output_schemas=False
        )
        for operations in found["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            found["components"]["schemas"].pop(name, None)
        app.openapi_schema = found
    return app.openapi_schema
