"""The LangGraph API under `/lg`: requests of LangGraph's own clients, answered from both daemons.

The API adds no permission and stores nothing. `docs/langgraph-api.md` lists what it answers and what it refuses.
"""

from importlib import metadata

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from turnkeeper.errors import TurnkeeperError
from turnkeeper.gateway.calls import Gateway, Offered, refuse
from turnkeeper.gateway.lg.api import Api
from turnkeeper.gateway.lg.runs import Runs
from turnkeeper.gateway.lg.store import Store
from turnkeeper.gateway.lg.tasks import Assistants, Crons
from turnkeeper.gateway.lg.threads import Threads

_FLAGS = {"assistants": True, "crons": True, "langsmith": False, "langsmith_tracing_replicas": False}


async def _info(_request: Request) -> JSONResponse:
    version = metadata.version("turnkeeper")
    return JSONResponse({"version": version, "langgraph_py_version": None, "flags": _FLAGS, "metadata": {}})


async def _unknown(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = "this is not supported; docs/langgraph-api.md lists what is"
    return JSONResponse({"detail": detail}, 404 if status == 405 else status)


def routes(api: Api) -> list[BaseRoute]:
    """Return all routes, more specific ones first."""
    runs = Runs(api)
    public = [Route("/ok", lambda _request: JSONResponse({"ok": True})), Route("/info", _info)]
    parts = (Assistants(api), Crons(api), runs, Threads(api, runs), Store(api))
    return [*public, *(route for part in parts for route in part.routes())]


def surface(gateway: Gateway) -> Offered:
    handlers = {TurnkeeperError: refuse, HTTPException: _unknown}
    return Offered(Starlette(routes=routes(Api(gateway)), exception_handlers=handlers))
