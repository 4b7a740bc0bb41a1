"""The HTTP routes of an author's project: a real process of the project behind a real gateway, and its attacks."""

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from agent_runtime.graph.foreign.project import findings
from tests.support import author
from tests.support.machines import new_home
from tests.support.program import PROJECT
from tests.support.project import Project, project_of
from tests.support.web import Answer, Web, configure, serving
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.config.settings import load_settings
from turnkeeper.constellation.supervisor.daemons import log_of
from turnkeeper.entropy import SystemEntropy
from turnkeeper.gateway.calls import Gateway, Who
from turnkeeper.gateway.keys import Keys, Sessions
from turnkeeper.gateway.project import gate
from turnkeeper.rpc.process import last_beat

pytestmark = pytest.mark.process


class Served:
    """A project behind a gateway, without daemons.

    Attributes:
        key: a key of the home.
    """

    def __init__(self, web: Web, project: Project) -> None:
        self.home, self.web, self.project = web.home, web, project
        self.key = web.key("owner", "decide")

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Send a request with the key, which `x_api_key=""` omits."""
        given = {"x_api_key": self.key} | headers
        return self.web.ask(path, method, body, **{name: value for name, value in given.items() if value})

    def json(self, path: str, **headers: str) -> Any:
        answer = self.ask(path, **headers)
        assert answer.status == 200, answer
        return json.loads(answer.body)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with new_home() as home:
        settings = author.write(tmp_path_factory.mktemp("project")) + "[project]\nenabled = true\n"
        with serving(home, settings) as web, project_of(home) as project:
            yield Served(web, project)


def test_a_route_of_the_project_is_served_below_lg(served: Served) -> None:
    said = served.json("/lg/echo?a=b%20c", x_mine="1")
    assert (said["path"], said["client"]) == ("/lg/echo", "127.0.0.1")
    assert said["url"] == f"http://{served.web.host}/lg/echo?a=b%20c", "links that it makes lead back to it"
    assert ["x-mine", "1"] in said["headers"]
    assert json.loads(served.ask("/lg/echo", "POST", b"text").body)["body"] == "text"


def test_no_caller_reaches_it_without_a_key_or_a_login(served: Served) -> None:
    assert served.ask("/lg/echo", x_api_key="").status == 401
    assert served.ask("/lg/echo", x_api_key="", authorization="Bearer user-ada").status == 200
    assert served.ask("/lg/echo", x_api_key="", authorization="Bearer nobody").status == 401
    assert served.ask("/lg/echo", origin="https://evil.example").status == 403
    assert served.web.ask("/lg/echo", host="evil.example", x_api_key=served.key).status == 421


@pytest.mark.parametrize(
    "path", ["/lg/threads", "/lg/threads/any", "/lg/assistants/search", "/lg/ok", "/lg/store/items"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_a_route_that_shadows_ours_is_never_called(served: Served, method: str, path: str) -> None:
    assert "shadowed" not in served.ask(path, method, b"{}").body


@pytest.mark.parametrize(
    "path",
    [
        *("//lg/echo", "/lg//echo", "/lg/./echo", "/lg/../lg/echo", "/lg/%2e%2e/echo", "/lg/x/../echo", "/lg/%2fecho"),
        *("/lg/ech%6f%2e", "/lg/echo%00", "/lg/x%5c..%5cecho", "/%6cg/echo", "/lg/..", "/LG/echo", "/echo"),
        *("/lg/%2e%2e/ui", "/lg/..%2fui", "/lg;x/echo"),
    ],
)
def test_a_path_that_two_servers_could_read_differently_is_not_passed_on(served: Served, path: str) -> None:
    answer = served.ask(path)
    assert answer.status in {401, 404}, answer
    assert '"headers"' not in answer.body


def test_no_key_of_the_home_and_no_cookie_of_its_page_reaches_the_project(served: Served) -> None:
    served.web.log_in()
    secret = served.web.cookie.partition("=")[2]
    cookie = f"mine=1; {served.web.cookie}; other=2"
    said = served.json("/lg/echo", cookie=cookie, x_other=served.key, authorization=f"Bearer {served.key}")
    assert ["cookie", "mine=1; other=2"] in said["headers"]
    assert served.key not in str(said)
    assert secret not in str(said)
    assert served.ask(f"/lg/echo?key={served.key}").status == 400
    seen = served.json("/lg/echo", x_api_key="", authorization="Bearer user-ada", cookie=cookie)
    assert secret not in str(seen)


def test_the_project_cannot_be_told_a_false_origin_of_a_request(served: Served) -> None:
    said = served.json("/lg/echo", x_forwarded_for="8.8.8.8", x_real_ip="8.8.8.8", forwarded="for=8.8.8.8")
    assert said["client"] == "127.0.0.1"
    assert "8.8.8.8" not in str(said)


def test_the_process_of_the_project_has_no_secret_of_the_home(served: Served, tmp_path: Path) -> None:
    with new_home() as home:
        configure(home, author.write(tmp_path) + "[project]\nenabled = true\n")
        (home.root / ".env").write_text("OPENAI_API_KEY=planted\n")
        with serving(home, author.write(tmp_path) + "[project]\nenabled = true\n") as web:
            other = Served(web, Project(home))
            other.project.start(OPENAI_API_KEY="planted", TURNKEEPER_SECRET="planted")
            try:
                said = other.json("/lg/surroundings")
            finally:
                other.project.stop()
    assert "planted" not in str(said)
    assert said["environ"][0]["OF_THE_PROJECT"] == "yes"
    assert not [one for one in said["opened"] if "/keys/" in one or one.endswith((".db", ".env"))]
    secrets = [path.read_text() for path in served.home.keys.glob("*.json")]
    assert not [one for text in secrets for one in re.findall(r"[0-9a-f]{64}", text) if one in str(said)]


def test_what_sets_a_variable_at_each_start_does_not_start_the_process_again_for_ever(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        f"with open({str(starts)!r}, 'a+') as file:\n"
        "    file.write('x')\n"
        "    if file.tell() > 4:\n"
        "        os._exit(1)\n"
        "os.environ['SET_AT_EACH_START'] = 'yes'\n"
    )
    with new_home() as home:
        configure(home, author.write(tmp_path) + "[project]\nenabled = true\n")
        project = Project(home)
        project.start(PYTHONPATH=str(tmp_path))
        project.stop()
    assert starts.read_text() == "xx"


def test_a_redirect_is_passed_on_and_never_followed(served: Served) -> None:
    with Web.listening() as port:
        answer = served.ask(f"/lg/redirect?to=http://127.0.0.1:{port}/internal")
    assert (answer.status, answer.headers["location"]) == (307, f"http://127.0.0.1:{port}/internal")


def test_a_page_of_the_project_cannot_act_as_the_homes_page(served: Served) -> None:
    answer = served.ask("/lg/page")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert answer.headers["set-cookie"] == "mine=1"
    assert not {"access-control-allow-origin", "clear-site-data"} & answer.headers.keys()
    assert "sandbox" not in served.ask("/lg/ok").headers["content-security-policy"]


def test_an_answer_streams(served: Served) -> None:
    with served.web.connect() as connection:
        head = f"GET /lg/stream HTTP/1.1\r\nHost: {served.web.host}\r\nX-Api-Key: {served.key}\r\n\r\n"
        connection.sendall(head.encode())
        read = b""
        while b"first" not in read:
            read += connection.recv(4096)
    assert read.startswith(b"HTTP/1.1 200")


def test_the_description_has_our_paths_and_the_projects(served: Served) -> None:
    paths = served.json("/lg/openapi.json")["paths"]
    assert {"/echo", "/threads/{thread_id}", "/threads/search"} <= paths.keys()
    assert paths["/threads/search"].keys() == {"post"}, "ours, not the one that shadows it"
    assert served.ask("/lg/openapi.json", x_api_key="").status == 401


async def forwarded(home: Home, path: str, **limits: Any) -> tuple[int, bytes, bool]:
    """Pass a request on, in this process. Return the status, the body, and whether the answer was broken off."""
    clock, entropy = SystemClock(), SystemEntropy()
    sessions = Sessions(Keys(home), clock, entropy)
    project = gate.Project(Gateway(home, load_settings(home), sessions, clock=clock, entropy=entropy))
    sent: list[Any] = []
    broken = asyncio.Event()

    async def receive() -> Any:
        if sent or receive_calls:
            await asyncio.Event().wait()
        receive_calls.append(True)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    receive_calls: list[bool] = []
    scope = {
        "type": "http", "method": "GET", "raw_path": f"/lg{path}".encode(), "query_string": b"", "root_path": "/lg",
        "headers": [(b"host", b"x")], "who": Who(surface="api"), "added": {}, "state": {"abort": broken.set},
    }  # fmt: skip
    async with project.app:
        await project.forward(scope, receive, send)
    body = b"".join(one.get("body", b"") for one in sent)
    return sent[0]["status"], body, broken.is_set()


async def test_an_application_that_hangs_is_answered_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HEAD_S", 0.2)
    with pytest.raises(HTTPException) as refused:
        await forwarded(served.home, "/hang")
    assert refused.value.status_code == 504
    assert served.ask("/lg/echo").status == 200, "others are served"


async def test_an_answer_without_end_is_broken_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "LARGEST_ANSWER", 1 << 20)
    status, body, is_broken = await forwarded(served.home, "/endless")
    assert (status, is_broken) == (200, True), "the caller must not take it as whole"
    assert len(body) <= 1 << 20


async def test_an_answer_that_stops_is_broken_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "HEAD_S", 0.3)
    assert await forwarded(served.home, "/stream") == (200, b"first", True)


async def test_a_login_that_hangs_is_answered_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "LOGIN_S", 0.2)
    project = gate.Project(Gateway(served.home, load_settings(served.home), None, clock=None, entropy=None))  # type: ignore[arg-type]
    scope = {"method": "GET", "path": "/lg/x", "root_path": "/lg", "query_string": b"",
             "headers": [(b"authorization", b"Bearer hang")]}  # fmt: skip
    with pytest.raises(HTTPException) as refused:
        await project.check(scope, [])
    assert refused.value.status_code == 504


def test_a_project_that_dies_is_503_until_it_runs_again(tmp_path: Path) -> None:
    with new_home() as home, serving(home, author.write(tmp_path) + "[project]\nenabled = true\n") as web:
        served = Served(web, Project(home))
        assert served.ask("/lg/echo").status == 503
        served.project.start()
        assert served.ask("/lg/die").status == 503
        served.project.kill()  # it has died: the supervisor would notice, too
        answer = served.ask("/lg/echo")
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert "does not run" in answer.body
        assert served.ask("/lg/threads", x_api_key="", authorization="Bearer user-ada").status == 503
        assert served.ask("/lg/ok").status == 200, "the API itself is there"
        served.project.start()
        assert served.ask("/lg/echo").status == 200
        served.project.stop()


SLOW = """
from contextlib import asynccontextmanager

@asynccontextmanager
async def waits(app):
    os.mkfifo("FOLDER/begins")
    await asyncio.to_thread(lambda: open("FOLDER/begins").read())
    yield

app = Starlette(routes=routes, lifespan=waits)
"""


def test_a_project_serves_once_its_application_has_started(tmp_path: Path) -> None:
    with new_home() as home, serving(home, author.write(tmp_path) + "[project]\nenabled = true\n") as web:
        (tmp_path / "project.py").write_text(author.PROJECT + SLOW.replace("FOLDER", str(tmp_path)))
        served, begins = Served(web, Project(home)), tmp_path / "begins"
        with ThreadPoolExecutor() as pool:
            starts = pool.submit(served.project.start)
            assert SystemClock().poll(begins.exists, timeout_s=60, every_s=0.02)
            with begins.open("w"):  # the application waits until this file is closed
                assert last_beat(home, PROJECT.name) is None
                assert served.ask("/lg/echo").status == 503
            starts.result()
        assert served.ask("/lg/echo").status == 200
        served.project.stop()


def test_the_routes_can_ask_the_login_themselves(tmp_path: Path) -> None:
    http = {"app": "./project.py:app", "enable_custom_route_auth": True}
    settings = author.write(tmp_path, http=http) + "[project]\nenabled = true\npublic = true\n"
    with new_home() as home, serving(home, settings) as web, project_of(home) as project:
        served = Served(web, project)
        said = served.json("/lg/whoami", x_api_key="", authorization="Bearer user-ada", x_user="eve")
        assert (said["identity"], said["permissions"]) == ("ada", ["talk"])
        for one in ({}, {"x_user": "ada"}, {"authorization": "Bearer nobody"}):
            assert served.ask("/lg/whoami", x_api_key="", **one).status == 401
        assert served.ask("/lg/whoami").status == 401, "a key of the home is no user of the project"


def test_public_routes_answer_callers_without_a_key(tmp_path: Path) -> None:
    settings = author.write(tmp_path, auth=None) + "[project]\nenabled = true\npublic = true\n"
    with new_home() as home, serving(home, settings) as web, project_of(home) as project:
        served = Served(web, project)
        assert served.ask("/lg/echo", x_api_key="").status == 200
        for path, method in (("/threads", "POST"), ("/assistants/search", "POST"), ("/openapi.json", "GET")):
            assert served.ask(f"/lg{path}", method, b"{}", x_api_key="").status == 401, path
        answer = served.ask("/lg/threads/search", "POST", b"{}", x_api_key="", authorization="Bearer user-ada")
        assert (answer.status, "has no login" in answer.body) == (401, True)


def test_without_scopes_the_login_is_not_used(tmp_path: Path) -> None:
    settings = author.write(tmp_path) + "[project]\nenabled = true\nscopes = []\n"
    with new_home() as home, serving(home, settings) as web, project_of(home) as project:
        served = Served(web, project)
        assert served.ask("/lg/threads", x_api_key="", authorization="Bearer user-ada").status == 401
        assert served.ask("/lg/echo").status == 200


def test_the_project_is_off_by_default(tmp_path: Path) -> None:
    with new_home() as home, serving(home, author.write(tmp_path)) as web:
        key = web.key("owner")
        assert web.ask("/lg/echo", x_api_key=key).status == 404
        assert web.ask("/lg/threads", authorization="Bearer user-ada").status == 401


def test_what_a_project_names_and_the_home_does_not_serve_is_a_finding(tmp_path: Path) -> None:
    with new_home() as home:
        configure(home, author.write(tmp_path))
        ((what, fix),) = findings(home)
        assert what == "langgraph.json names HTTP routes (http.app) and a login (auth), which are not served"
        assert "[project]" in fix
        configure(home, author.write(tmp_path) + "[project]\nenabled = true\n")
        assert not list(findings(home))


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"http": {"app": "./missing.py:app"}}, "no such file"),
        ({"http": {"app": "./graph.py:graph"}}, "is not an application of Starlette or FastAPI"),
        ({"http": {"app": "./project.py:nothing"}}, "has no attribute 'nothing'"),
        ({"auth": {"path": "./project.py:app"}}, "has no @auth.authenticate handler"),
        ({"auth": None, "http": {"app": "./project.py:app", "enable_custom_route_auth": True}}, "needs a login"),
    ],
)
def test_a_project_that_cannot_be_served_says_why(tmp_path: Path, stated: dict[str, Any], why: str) -> None:
    with new_home() as home:
        configure(home, author.write(tmp_path, **stated) + "[project]\nenabled = true\n")
        with pytest.raises(AssertionError, match=re.escape(why)):
            Project(home).start()
        said = log_of(home, PROJECT).read_text()
        assert "Traceback" not in said
        assert said.startswith("error: ")


def test_its_sockets_are_the_owners_alone(served: Served) -> None:
    for name in ("project.http", "project.auth"):
        assert (served.home.run / name).stat().st_mode & 0o777 == 0o600
