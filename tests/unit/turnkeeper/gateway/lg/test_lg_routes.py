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


def offered() -> set[str]:
    web = SimpleNamespace(langgraph_channel="general", langgraph_category="loop")
    gateway: Any = SimpleNamespace(clock=ManualClock(), settings=SimpleNamespace(web=web, default_graph="default"))
    found = routes(Api(cast("Any", gateway)))
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
