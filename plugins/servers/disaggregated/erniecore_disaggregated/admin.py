"""``/admin``: what operators ask of the processes, from this machine and with the API key alone."""

from __future__ import annotations

from typing import Any, Literal

from erniecore_openai.errors import ApiError
from erniecore_openai.schemas.common import Schema
from erniecore_openai.security import LimitedRoute
from erniecore_system.addresses import is_loopback
from fastapi import APIRouter, FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from erniecore.api import UsageError
from erniecore_disaggregated.router import Router

router = APIRouter(route_class=LimitedRoute, prefix="/admin")


class SwitchRequest(Schema):
    """Which process takes which role."""

    worker: str = Field(description="Name of the process, as /admin/workers has it.")
    role: Literal["prefill", "decode"] = Field(description="What it is to do.")


def add_admin(app: FastAPI, cluster: Router, *, keyed: bool) -> None:
    """Add the routes; without an API key for the server they are refused."""
    app.state.cluster, app.state.keyed = cluster, keyed
    app.state.fields["/admin/switch"] = tuple(SwitchRequest.model_fields)
    app.include_router(router)


def _check(request: Request) -> Router:
    local = request.client is not None and is_loopback(request.client.host)
    if not local or not request.app.state.keyed:
        text = "only from this machine" if not local else "only on a server with an API key"
        raise ApiError(403, f"/admin answers {text}", code="admin_refused")
    found: Router = request.app.state.cluster
    return found


@router.get("/workers", operation_id="list_workers")
async def list_workers(request: Request) -> Any:
    """The processes: role, epoch, status, what they have to do."""
    cluster = _check(request).cluster
    with cluster.lock:
        found = [
            {
                "name": member.name, "role": member.state.role, "epoch": member.state.epoch,
                "status": member.state.status, "pid": None if member.process is None else member.process.pid,
                "prompts": member.state.prompts, "queued_tokens": member.state.queued_tokens,
                "completions": member.state.completions, "fault": member.fault,
            }
            for member in cluster.members.values()
        ]  # fmt: skip
        return {"epoch": cluster.epoch, "switches": dict(cluster.switches), "workers": found}


@router.post("/switch", operation_id="switch_role", responses={409: {"description": "The role stays; says why."}})
async def switch_role(request: Request, asked: SwitchRequest) -> Any:
    """Drain a process, change its role and open it again. Answers when that is done."""
    cluster = _check(request)
    try:
        return await run_in_threadpool(cluster.switch, asked.worker, asked.role)
    except UsageError as error:
        status = 404 if error.where == "worker" else 409
        raise ApiError(status, f"{error.message}: {error.found}", param="worker", code="not_switched") from error
