"""The LangGraph API under `/lg`: requests of LangGraph's own clients, answered from both daemons.

The API adds no permission and stores nothing. `docs/langgraph-api.md` lists the answered and the refused requests.
"""

from functools import partial
from importlib import metadata

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from turnkeeper import errors
from turnkeeper.config.surfaces import offered
from turnkeeper.gateway.calls import Gateway, Offered, status_of
from turnkeeper.gateway.lg import runs, store, tasks, threads
from turnkeeper.gateway.lg.api import Api
from turnkeeper.gateway.lg.requests import NoGraph, Unsupported, checked

_CODES: dict[type[Exception], str] = {
    NoGraph: "no_graph",
    Unsupported: "not_supported",
    errors.InvalidInput: "invalid",
    errors.NotFound: "not_found",
    errors.Conflict: "conflict",
    errors.Denied: "denied",
    errors.Unreachable: "unreachable",
    errors.Exhausted: "exhausted",
}
_FLAGS = {"assistants": True, "crons": True, "langsmith": False, "langsmith_tracing_replicas": False}


async def _info(_request: Request) -> JSONResponse:
    version = metadata.version("turnkeeper")
    return JSONResponse({"version": version, "langgraph_py_version": None, "flags": _FLAGS, "metadata": {}})


async def _refused(_request: Request, error: Exception) -> Response:
    """Answer a refusal with the reason, a code that stays the same, and an alternative."""
    if not isinstance(error, errors.TurnkeeperError):
        raise error
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), "failed")
    said = {"detail": str(error), "code": code, "instead": error.hint or None}
    return JSONResponse(said, 400 if code == "no_graph" else status_of(error))


async def _unknown(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = "this is not supported; docs/langgraph-api.md lists what is"
    return JSONResponse({"detail": detail}, 404 if status == 405 else status)


def routes(api: Api) -> list[BaseRoute]:
    """Return all routes, more specific ones first."""
    public = [*(Route(path, lambda _request: JSONResponse({"ok": True}), name="") for path in ("/ok", "/health"))]
    socket = WebSocketRoute("/threads/{thread_id}/stream/events", partial(threads.socket, api))
    rows = (*tasks.ROUTES, *runs.ROUTES, *threads.ROUTES, *store.ROUTES)
    return [*public, Route("/info", _info, name=""), socket, *(api.route(*row) for row in rows)]


def surface(gateway: Gateway) -> Offered:
    handlers = {errors.TurnkeeperError: _refused, HTTPException: _unknown}
    app = Starlette(routes=routes(Api(gateway)), exception_handlers=handlers)
    return offered("project of clients", gateway, app, _refused, checked) or Offered(app)
