"""Every request of the LangGraph API is documented, and has a test of its name."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from starlette.routing import Route, WebSocketRoute

from tests.support.clock import ManualClock
from turnkeeper.gateway.lg.api import Api
from turnkeeper.gateway.lg.application import routes

ROOT = Path(__file__).parents[5]
ROW = re.compile(r"^\| `([A-Z]+ /\S*)` \|", re.MULTILINE)


# The requests of a user of a project's login, by the act about which the login's handlers are asked.
ACTS = {
    "assistants.delete": ["DELETE /assistants/{assistant_id}"],
    "threads.delete": ["DELETE /threads/{thread_id}"],
    "assistants.search": ["GET /assistants", "POST /assistants/count", "POST /assistants/search"],
    "assistants.read": [
        "GET /assistants/{assistant_id}",
        "GET /assistants/{assistant_id}/graph",
        "GET /assistants/{assistant_id}/schemas",
        "GET /assistants/{assistant_id}/subgraphs",
        "GET /assistants/{assistant_id}/subgraphs/{namespace}",
        "POST /assistants/{assistant_id}/versions",
    ],
    "threads.search": ["GET /threads", "POST /threads/count", "POST /threads/search"],
    "threads.read": [
        "GET /threads/{thread_id}",
        "GET /threads/{thread_id}/history",
        "GET /threads/{thread_id}/runs",
        "GET /threads/{thread_id}/runs/{run_id}",
        "GET /threads/{thread_id}/runs/{run_id}/join",
        "GET /threads/{thread_id}/runs/{run_id}/stream",
        "GET /threads/{thread_id}/state",
        "GET /threads/{thread_id}/state/{checkpoint_id}",
        "GET /threads/{thread_id}/stream",
        "POST /threads/{thread_id}/history",
        "POST /threads/{thread_id}/state/checkpoint",
        "POST /threads/{thread_id}/stream/events",
    ],
    "assistants.update": ["PATCH /assistants/{assistant_id}", "POST /assistants/{assistant_id}/latest"],
    "threads.update": [
        "PATCH /threads/{thread_id}",
        "POST /threads/{thread_id}/runs/{run_id}/cancel",
        "POST /threads/{thread_id}/state",
    ],
    "assistants.create": ["POST /assistants"],
    "threads.create_run": [
        "POST /runs",
        "POST /runs/stream",
        "POST /runs/wait",
        "POST /threads/{thread_id}/commands",
        "POST /threads/{thread_id}/runs",
        "POST /threads/{thread_id}/runs/stream",
        "POST /threads/{thread_id}/runs/wait",
    ],
    "threads.create": ["POST /threads"],
}


def known_routes() -> list[Any]:
    web = SimpleNamespace(langgraph_channel="general", langgraph_category="loop")
    gateway: Any = SimpleNamespace(clock=ManualClock(), settings=SimpleNamespace(web=web, default_graph="default"))
    return routes(Api(cast("Any", gateway)))


def offered() -> set[str]:
    found = known_routes()
    sockets = {f"SOCKET {route.path}" for route in found if isinstance(route, WebSocketRoute)}
    routed = (route for route in found if isinstance(route, Route))
    return sockets | {f"{method} {route.path}" for route in routed for method in (route.methods or set()) - {"HEAD"}}


def test_the_page_lists_what_is_answered_and_nothing_else() -> None:
    listed = ROW.findall((ROOT / "docs" / "reference" / "langgraph-api.md").read_text())
    assert len(listed) == len(set(listed))
    assert set(listed) == offered()


def test_each_request_has_a_test_of_its_name() -> None:
    files = [ROOT / "tests" / "acceptance" / f"test_langgraph_{part}.py" for part in ("api", "runs")]
    tests = {
        node.name for one in files for node in ast.parse(one.read_text()).body if isinstance(node, ast.FunctionDef)
    }
    named = {f"test_{re.sub(r'[^a-z]+', '_', request.lower()).strip('_')}" for request in offered()}
    assert named <= tests


def test_a_user_of_a_projects_login_may_make_these_requests_and_no_others() -> None:
    acts: dict[str, list[str]] = {}
    for route in known_routes():
        if isinstance(route, Route):  # a WebSocket is refused without a key
            requests = [f"{method} {route.path}" for method in (route.methods or set()) - {"HEAD"}]
            acts.setdefault(route.name, []).extend(requests)
    acts.pop("")
    assert {act: sorted(requests) for act, requests in acts.items()} == ACTS


def test_a_description_of_the_api_has_the_summary_of_each_handler() -> None:
    said = {route.path: route.endpoint.__doc__ for route in known_routes() if isinstance(route, Route)}
    assert said["/threads/{thread_id}/runs/stream"].startswith("Start a run and stream its events")
