"""The ASGI application: the routes of every page, the static files, errors as pages, behind the shield."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from erniecore.api import ErnieError
from erniecore_webui.pages import all_routes
from erniecore_webui.rendering import message
from erniecore_webui.security import Shield
from erniecore_webui.site import Site

STATIC = Path(__file__).with_name("static")


def create_app(site: Site) -> Starlette:
    """The application for ``site``."""
    app = Starlette(
        routes=[Mount("/static", StaticFiles(directory=STATIC), name="static"), *all_routes()],
        middleware=[Middleware(Shield, site=site)],
        exception_handlers={HTTPException: _http_error, ErnieError: _ernie_error},
    )
    app.state.site = site
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else ""
    # without words of its own an error has the phrase of its status, which is English and says nothing here
    return message(
        request, status, "" if status == HTTPStatus.NOT_FOUND and detail == HTTPStatus.NOT_FOUND.phrase else detail
    )


async def _ernie_error(request: Request, error: Exception) -> Response:
    """What a command would have printed."""
    return message(request, 400, str(error))
