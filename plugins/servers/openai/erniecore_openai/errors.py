"""Errors as OpenAI's clients read them: ``{"error": {message, type, param, code}}`` with a true status.

Clients try again after 408, 409, 429 and 5xx, so what the caller has to change is 400, never 500.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from erniecore.api import Json, nearest

#: Types by status; others are ``invalid_request_error``.
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}
#: Fields that OpenAI has and this server does not, with what to do instead.
HINTS: Mapping[str, str] = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "suffix": "put the text into the prompt",
    "best_of": "use n",
}
#: Seconds after which a client may try again.
RETRY_SECONDS = 1
_MOST_PROBLEMS = 8
#: what pydantic names a member of a tagged union by
_PARTS = ("text", "image_url", "video_url")
_ROLES = ("system", "developer", "user", "assistant", "tool")


class ApiError(HTTPException):
    """A request that is refused.

    Args:
        status: of HTTP. message: what is wrong, and what would be right. param: field of the request. code: for programs.
        close: end the connection, as the body of the request was not read.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None,
                 close: bool = False) -> None:  # fmt: skip
        headers = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        if close:
            headers["connection"] = "close"
        super().__init__(status, message, headers)
        self.param, self.code = param, code


def error_object(error: BaseException) -> Json:
    """What stands in the answer for an error; one that nobody foresaw shows no more than that."""
    if isinstance(error, ApiError):
        return body(error.status_code, error.detail, error.param, error.code)
    return body(500, "the server failed to answer; its own output says why")


def body(status: int, message: str, param: str | None = None, code: str | None = None) -> Json:
    """The JSON of an error."""
    return {
        "error": {"message": message, "type": TYPES.get(status, "invalid_request_error"), "param": param, "code": code}
    }


def add_handlers(app: FastAPI) -> None:
    """Every error of the app leaves as such an object."""
    app.add_exception_handler(HTTPException, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unforeseen)


async def _known(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if isinstance(error, ApiError):
        return JSONResponse(error_object(error), error.status_code, error.headers)
    status = error.status_code
    message = {
        404: f"no such route: {request.method} {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }.get(status, str(error.detail) or HTTPStatus(status).phrase)
    return JSONResponse(body(status, message), status, error.headers)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = _of_members(error.errors())
    message = "; ".join(_told(problem, request) for problem in problems[:_MOST_PROBLEMS])
    if len(problems) > _MOST_PROBLEMS:
        message += f"; and {len(problems) - _MOST_PROBLEMS} more"
    code = "unsupported_parameter" if any(p["type"] == "extra_forbidden" for p in problems) else "invalid_value"
    return JSONResponse(body(400, message, place(problems[0]["loc"]) or None, code), 400)


def _of_members(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Without those that only say that a list is no text where the list itself has a problem."""
    places = [place(problem["loc"]) for problem in problems]
    return [
        problem
        for problem, at in zip(problems, places, strict=True)
        if not (problem["type"] == "string_type" and any(other.startswith((f"{at}[", f"{at}.")) for other in places))
    ]


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse(error_object(error), 500)


def place(location: Sequence[Any]) -> str:
    """``messages[2].content`` for the place of a problem; members of unions that pydantic names are left out."""
    text, tagged = "", False
    for part in location[1:] if location[:1] == ("body",) else location:
        if isinstance(part, int):
            text, tagged = text + f"[{part}]", True
        elif tagged and part in (*_ROLES, *_PARTS):
            tagged = False
        elif not _is_type(part):
            text, tagged = text + (f".{part}" if text else part), False
    return text


def _is_type(part: str) -> bool:
    """Whether pydantic names a member of a union, not a field."""
    return bool(set(part) & set("[-")) or part in ("str", "int", "float", "bool") or part[:1].isupper()


def _told(problem: Mapping[str, Any], request: Request) -> str:
    """One problem in a line, without the value, which may be private."""
    where = place(problem["loc"])
    if problem["type"] == "extra_forbidden":
        name = str(problem["loc"][-1])
        if name in HINTS:
            return f"{where}: not supported; {HINTS[name]}"
        close = nearest(name, request.app.state.fields.get(request.url.path, ()))
        return f"{where}: not supported" + (f"; did you mean {close}?" if close else "")
    if problem["type"] == "model_attributes_type" or (not where and problem["type"] != "value_error"):
        return "the body must be a JSON object, sent as application/json"
    text = str(problem["msg"]).removeprefix("Value error, ")
    return f"{where}: {text[:1].lower()}{text[1:]}" if where else text
