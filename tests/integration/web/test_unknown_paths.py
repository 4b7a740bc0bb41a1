"""Unknown paths: the gateway gives a request without a key the same answer as on a known path."""

from collections.abc import Iterator

import pytest

from tests.integration.web.test_door import asked, in_this_process
from tests.support.web import Web, serving
from turnkeeper.config.home import Home

pytestmark = pytest.mark.process

UNKNOWN = (
    *("/nothing", "/docs", "/lg", "/lgx/threads", "/lg/nothing", "/hooksx/ci", "/.well-known/oauth-protected-resource"),
    *("/%3Fx", "/hook%09s/ci", "/lg%2Fnothing", "/%2e%2e/lg/threads"),
)


@pytest.fixture
def web(home: Home) -> Iterator[Web]:
    """A gateway without daemons: none of these requests comes as far as to need one."""
    with serving(home) as found:
        yield found


def test_an_unknown_path_is_refused_as_a_known_one_so_that_nothing_tells_which_paths_exist(web: Web) -> None:
    known = web.ask("/lg/threads")
    assert known.status == 401
    for path in UNKNOWN:
        found = web.ask(path)
        assert (path, found.status, found.body) == (path, known.status, known.body)
    key = web.key("one", "read")
    assert {path: web.ask(path, x_api_key=key).status for path in UNKNOWN} == dict.fromkeys(UNKNOWN, 404)


def test_a_browser_sees_a_page_that_says_so_at_an_unknown_path_and_at_a_known_one(web: Web) -> None:
    for path in ("/tasks", *UNKNOWN, "/lg/threads", "/mcp"):
        found = web.ask(path, accept="text/html,application/xhtml+xml,*/*;q=0.8")
        assert (found.status, found.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "There is no page at this address. The page is at <a href='/ui/'>" in found.body
    assert web.ask("/tasks", accept="application/json").headers["content-type"] == "application/json"


async def test_a_surface_that_the_door_does_not_know_needs_a_key_unless_it_checks_its_callers(home: Home) -> None:
    async with in_this_process(home, more=lambda idle: {"/own": idle.surface}) as (_, port):
        known = await asked(port, "/own/ok")
    async with in_this_process(home, more=lambda idle: {"/own": idle.surface._replace(checks_callers=True)}) as (
        _,
        port,
    ):
        checked, beside = await asked(port, "/own/ok"), await asked(port, "/owner/ok")
    assert [b" 401 " in known, b" 200 " in checked, b" 401 " in beside] == [True, True, True]
