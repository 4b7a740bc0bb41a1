"""The login of an author's project: what its users may do, and what they never reach."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from starlette.requests import Request

from tests.support import author
from tests.support.langgraph import Lg, said
from tests.support.machines import constellation_on, new_home
from tests.support.postgres import Server
from tests.support.project import project_of
from tests.support.web import configure, serving
from turnkeeper.bus.event_log import read_events
from turnkeeper.clock import SystemClock
from turnkeeper.config.settings import load_settings
from turnkeeper.entropy import SystemEntropy
from turnkeeper.gateway.calls import Gateway, Who
from turnkeeper.gateway.keys import Scope
from turnkeeper.gateway.lg import api
from turnkeeper.gateway.lg.threads import listed

pytestmark = pytest.mark.process
OWNED = "/threads/{}/state", "/threads/{}/history", "/threads/{}/runs", "/threads/{}", "/threads/{}/stream"


def served(server: Server | None, folder: Path, more: str = "") -> Iterator[Lg]:
    settings = author.write(folder) + "[project]\nenabled = true\n" + more
    with new_home() as home, constellation_on(server, home) as constellation:
        for one in constellation.homes:
            configure(one, settings)
        constellation.start()
        with serving(home, settings) as web, project_of(home):
            made = Lg(constellation, web)
            yield made
            made.http.close()


@pytest.fixture(scope="module")
def lg(postgres_server: Server | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lg]:
    yield from served(postgres_server, tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def decides(postgres_server: Server | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lg]:
    """A home whose users may decide."""
    folder = tmp_path_factory.mktemp("decides")
    yield from served(postgres_server, folder, more='scopes = ["read", "chat", "decide"]\n')


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer user-{name}"}


def ask(lg: Lg, name: str, method: str, path: str, body: Any = None, **more: str) -> httpx.Response:
    """Send a request of a user of the login."""
    return httpx.request(method, lg.url + path, json=body, headers=headers(name) | more, timeout=60)


def thread_of(lg: Lg, name: str, **metadata: Any) -> str:
    made = ask(lg, name, "POST", "/threads", {"metadata": metadata})
    assert made.status_code == 200, made.text
    return str(made.json()["thread_id"])


def test_the_sdk_works_with_nothing_but_the_url_and_the_projects_token(lg: Lg) -> None:
    with get_sync_client(url=lg.url, headers=headers("ada")) as client:
        thread = client.threads.create()
        assert thread["metadata"]["owner"] == "ada", "the handler marked it"
        values = client.runs.wait(thread["thread_id"], "agent", input=said("hello"))
        assert values["messages"][-1]["content"] == "You said hello"  # type: ignore[index, call-overload]
        assert [one["thread_id"] for one in client.threads.search()] == [thread["thread_id"]]
        assert client.threads.get_state(thread["thread_id"])["values"]


def test_a_run_without_a_thread_gets_one_that_belongs_to_its_user(lg: Lg) -> None:
    answer = ask(lg, "bo", "POST", "/runs/wait", {"assistant_id": "agent", "input": said("hello")})
    assert answer.status_code == 200, answer.text
    thread_id = answer.headers["content-location"].split("/")[2]
    assert ask(lg, "bo", "GET", f"/threads/{thread_id}").json()["metadata"]["owner"] == "bo"
    assert ask(lg, "eve", "GET", f"/threads/{thread_id}").status_code == 404


def test_a_run_on_a_missing_thread_makes_one_that_belongs_to_its_user(lg: Lg) -> None:
    thread_id = "11111111-2222-4333-8444-555555555555"
    run = {"assistant_id": "agent", "input": said("hello")}
    assert ask(lg, "bo", "POST", f"/threads/{thread_id}/runs/wait", run).status_code == 404
    answer = ask(lg, "bo", "POST", f"/threads/{thread_id}/runs/wait", {**run, "if_not_exists": "create"})
    assert answer.status_code == 200, answer.text
    assert ask(lg, "bo", "GET", f"/threads/{thread_id}").json()["metadata"]["owner"] == "bo"


@pytest.mark.parametrize("path", OWNED)
def test_another_users_thread_does_not_exist(lg: Lg, path: str) -> None:
    thread_id = thread_of(lg, "ada")
    found, missing = ask(lg, "eve", "GET", path.format(thread_id)), ask(lg, "eve", "GET", path.format("missing"))
    assert (found.status_code, missing.status_code) == (404, 404)
    assert found.json()["detail"].replace(thread_id, "missing") == missing.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "", {"metadata": {"owner": "eve"}}),
        ("POST", "/state", {"values": {"messages": []}}),
        ("POST", "/state/checkpoint", {}),
        ("POST", "/history", {}),
        ("POST", "/stream/events", {"channels": ["messages"]}),
        ("POST", "/runs", {"assistant_id": "agent", "input": said("hello")}),
        ("POST", "/runs/stream", {"assistant_id": "agent", "input": said("hello")}),
        ("POST", "/runs/wait", {"assistant_id": "agent", "input": said("hello"), "if_not_exists": "create"}),
        (
            "POST",
            "/commands",
            {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": said("x")}},
        ),
        ("POST", "/runs/any/cancel", {}),
    ],
)
def test_nothing_can_be_done_to_another_users_thread(lg: Lg, method: str, path: str, body: Any) -> None:
    thread_id = thread_of(lg, "ada")
    answer = ask(lg, "eve", method, f"/threads/{thread_id}{path}", body)
    assert answer.status_code == 404, answer.text
    after = lg.ask("GET", f"/threads/{thread_id}")
    assert (after["metadata"]["owner"], after["status"]) == ("ada", "idle")


@pytest.mark.parametrize("search", [{}, {"metadata": {"owner": "ada"}}, {"limit": 1000}, {"ids": ["THREAD"]}])
def test_a_search_never_shows_another_users_threads(lg: Lg, search: dict[str, Any]) -> None:
    thread_id, own = thread_of(lg, "ada"), thread_of(lg, "eve")
    body = json.loads(json.dumps(search).replace("THREAD", thread_id))
    found = ask(lg, "eve", "POST", "/threads/search", body)
    assert found.status_code == 200
    assert {one["metadata"]["owner"] for one in found.json()} <= {"eve"}
    listed = ask(lg, "eve", "GET", "/threads").json()
    assert own in {one["thread_id"] for one in listed["threads"]}
    assert {one["metadata"]["owner"] for one in listed["threads"]} == {"eve"}
    assert ask(lg, "eve", "POST", "/threads/count", {}).json() == listed["total"]


async def test_threads_that_a_user_does_not_see_do_not_count_among_those_that_a_search_reads(
    lg: Lg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MOST_READ", 2)
    monkeypatch.setattr(api, "PAGE", 2)
    thread_of(lg, "zoe")
    for _ in range(5):
        thread_of(lg, "ada")
    settings, about = load_settings(lg.web.home), {"type": "http", "method": "GET", "headers": [], "query_string": b""}
    gateway = Gateway(lg.web.home, settings, None, clock=SystemClock(), entropy=SystemEntropy())  # type: ignore[arg-type]
    for name, total in (("zoe", 1), ("ada", 2), ("nobody", 0)):
        who = Who(surface="api", scope=Scope.READ, key=f"user.{name}", is_guest=True, filters=[{"owner": name}])
        answer = await listed(api.Call(api.Api(gateway), Request({**about, "who": who}), Scope.READ))
        assert json.loads(answer.body)["total"] == total
    await gateway.close()


def test_creating_a_thread_that_another_user_has_does_not_show_it(lg: Lg) -> None:
    thread_id = thread_of(lg, "ada", secret="words")
    for how in ("do_nothing", "raise"):
        answer = ask(lg, "eve", "POST", "/threads", {"thread_id": thread_id, "if_exists": how})
        assert (answer.status_code, "words" in answer.text) == (404, False)


def test_a_client_cannot_choose_whose_its_thread_is(lg: Lg) -> None:
    thread_id = thread_of(lg, "eve", owner="ada")
    assert ask(lg, "eve", "GET", f"/threads/{thread_id}").json()["metadata"]["owner"] == "eve"


def test_threads_of_the_homes_owner_in_other_channels_stay_hidden(lg: Lg) -> None:
    lg.constellation.command("agent-runtime", "send", "private", "hello", "--thread", "of-the-owner", "--wait")
    marked = lg.ask("PATCH", "/threads/of-the-owner", {"metadata": {"owner": "eve"}})
    assert marked["metadata"]["owner"] == "eve"
    assert ask(lg, "eve", "GET", "/threads/of-the-owner").status_code == 404


def test_an_assistant_belongs_to_its_user(lg: Lg) -> None:
    made = ask(lg, "ada", "POST", "/assistants", {"graph_id": "agent", "metadata": {"note": 1}}).json()
    assert made["metadata"] == {"note": 1, "owner": "ada"}
    place = f"/assistants/{made['assistant_id']}"
    for method, path, body in (
        ("GET", "", None), ("GET", "/schemas", None), ("POST", "/versions", {}), ("PATCH", "", {"name": "mine"}),
        ("POST", "/latest", {"version": 1}), ("DELETE", "", None),
    ):  # fmt: skip
        assert ask(lg, "eve", method, place + path, body).status_code == 404, (method, path)
    found = ask(lg, "eve", "POST", "/assistants/search", {"limit": 1000}).json()
    assert made["assistant_id"] not in {one["assistant_id"] for one in found}
    run = {"assistant_id": made["assistant_id"], "input": said("hello")}
    assert ask(lg, "eve", "POST", f"/threads/{thread_of(lg, 'eve')}/runs/wait", run).status_code == 404
    assert ask(lg, "ada", "POST", f"/threads/{thread_of(lg, 'ada')}/runs/wait", run).status_code == 200
    assert ask(lg, "ada", "DELETE", place).status_code == 204


def test_what_a_handler_forbids_is_forbidden(lg: Lg) -> None:
    thread_id = thread_of(lg, "ada")
    answer = ask(lg, "ada", "DELETE", f"/threads/{thread_id}")
    assert (answer.status_code, answer.json()["detail"]) == (403, "the project's login forbids this")
    assert lg.ask("GET", f"/threads/{thread_id}")["metadata"]["owner"] == "ada"


def test_a_filter_that_is_not_known_is_refused_and_shows_nothing(lg: Lg) -> None:
    thread_of(lg, "ada")
    for method, path in (("POST", "/threads/search"), ("GET", "/threads"), ("POST", "/threads/count")):
        answer = ask(lg, "odd", method, path, {} if method == "POST" else None)
        assert (answer.status_code, "'owner' is not known" in answer.text) == (422, True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/runs/crons", {"assistant_id": "agent", "schedule": "0 9 * * *", "input": said("hello")}),
        ("POST", "/runs/crons/search", {}),
        ("PUT", "/store/items", {"namespace": ["a"], "key": "b", "value": {}}),
        ("GET", "/store/items?namespace=a&key=b", None),
        ("POST", "/store/items/search", {}),
        ("POST", "/runs/batch", []),
        ("POST", "/runs/cancel", {"status": "all"}),
        ("POST", "/threads/any/copy", {}),
        ("POST", "/runs/wait", {"assistant_id": "agent", "input": said("hello"), "webhook": "https://example.org"}),
        ("POST", "/runs", {"assistant_id": "agent", "input": said("hello"), "after_seconds": 5}),
    ],
)
def test_what_no_scope_gives_is_refused(lg: Lg, method: str, path: str, body: Any) -> None:
    answer = ask(lg, "ada", method, path, body)
    assert answer.status_code in {403, 422}, answer.text
    assert "users of the project's login" in answer.text or body == []


def test_a_user_decides_nothing_unless_the_settings_say_so(lg: Lg) -> None:
    run = {"assistant_id": "agent", "command": {"resume": "yes"}}
    answer = ask(lg, "ada", "POST", f"/threads/{thread_of(lg, 'ada')}/runs", run)
    assert (answer.status_code, "may not decide" in answer.text) == (403, True)


def test_a_decision_without_an_id_needs_that_its_user_was_shown_the_question(decides: Lg) -> None:
    place = f"/threads/{thread_of(decides, 'ada')}"

    def run(**given: Any) -> httpx.Response:
        return ask(decides, "ada", "POST", f"{place}/runs", {"assistant_id": "agent", **given})

    assert run(input=said("ask twice")).status_code == 200
    for question in ("May I water the beds?", "May I clear the garden?"):
        waits = lambda asked=question: asked in json.dumps(decides.ask("GET", place)["interrupts"])  # noqa: E731
        assert SystemClock().poll(waits, timeout_s=60, every_s=0.05)
        unseen = run(command={"resume": "no"})
        assert unseen.status_code == 409, unseen.text
        assert question in ask(decides, "ada", "GET", f"{place}/state").text
        assert run(command={"resume": "yes"}).status_code == 200
    ends = lambda: "You said yes and yes" in decides.http.get(f"{place}/state").text  # noqa: E731
    assert SystemClock().poll(ends, timeout_s=60, every_s=0.05)


def test_what_a_handler_removes_or_changes_of_a_run_counts(lg: Lg) -> None:
    run = {"assistant_id": "agent", "input": said("my role"), "config": {"configurable": {"role": "admin"}}}
    for name, role in (("ada", "admin"), ("strict", "nobody")):
        answer = ask(lg, name, "POST", f"/threads/{thread_of(lg, name)}/runs/wait", run)
        assert answer.json()["messages"][-1]["content"] == f"You said {role}"
    missing = "/threads/22222222-2222-4333-8444-555555555555/runs/wait"
    assert ask(lg, "strict", "POST", missing, {**run, "if_not_exists": "create"}).status_code == 404


@pytest.mark.parametrize("path", ["/threads", "/threads/search", "/runs/wait", "/assistants/search"])
def test_handlers_are_asked_only_about_bodies_that_the_api_would_accept(lg: Lg, path: str) -> None:
    run = {"assistant_id": "agent", "input": said("hello")} if "runs" in path else {}
    assert ask(lg, "ada", "POST", path, {**run, "metadata": None}).status_code == 200
    for wrong in (5, [1], "words"):
        answer = ask(lg, "ada", "POST", path, {**run, "metadata": wrong})
        assert (answer.status_code, "is not an object" in answer.text) == (422, True), answer.text


def test_a_command_is_checked_as_a_run_is(lg: Lg) -> None:
    place = f"/threads/{thread_of(lg, 'ada')}/commands"
    params = {"assistant_id": "agent", "input": said("hello")}
    for metadata, status in ((None, 200), (5, 422)):
        command = {"id": 1, "method": "run.start", "params": {**params, "metadata": metadata}}
        assert ask(lg, "ada", "POST", place, command).status_code == status


def test_equal_ids_of_requests_of_two_users_are_two_requests(lg: Lg) -> None:
    run = {"assistant_id": "agent", "input": said("hello")}
    each = [
        ask(lg, name, "POST", f"/threads/{thread_of(lg, name)}/runs", run, **{"idempotency-key": "1"}).json()["run_id"]
        for name in ("ada", "eve")
    ]
    assert each[0] != each[1]


def test_acts_are_recorded_with_the_users_identity(lg: Lg) -> None:
    thread_of(lg, "ada")
    acts = [record for home in lg.constellation.homes for record in read_events(home.logs)]
    assert "gateway/api/user.ada" in {record.get("via") for record in acts}


@pytest.mark.parametrize(
    "given",
    [
        {}, {"authorization": "Bearer nobody"}, {"x-user": "ada"}, {"x-forwarded-user": "ada"}, {"cookie": "user=ada"},
        {"x-api-key": "user-ada"}, {"x-turnkeeper-user": "ada"}, {"authorization": "Basic user-ada"},
    ],
)  # fmt: skip
def test_no_header_but_the_logins_own_makes_a_user(lg: Lg, given: dict[str, str]) -> None:
    answer = httpx.post(f"{lg.url}/threads/search", json={}, headers=given)
    assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")


def test_a_wrong_key_of_the_home_is_no_token_of_the_login(lg: Lg) -> None:
    wrong = f"tk-{'0' * 12}-{'0' * 64}"
    answer = httpx.get(f"{lg.url}/threads", headers=headers("ada") | {"x-api-key": wrong})
    assert answer.status_code == 401


def test_a_handler_that_fails_or_hangs_lets_no_one_in(lg: Lg) -> None:
    broken = httpx.get(f"{lg.url}/threads", headers={"authorization": "Bearer broken"}, timeout=60)
    assert (broken.status_code, "secret" in broken.text) == (500, False)
    hangs = httpx.get(f"{lg.url}/threads", headers={"authorization": "Bearer hang"}, timeout=60)
    assert hangs.status_code == 504
    assert ask(lg, "ada", "GET", "/threads").status_code == 200, "others are served"


def test_keys_of_the_home_act_as_before(lg: Lg) -> None:
    thread_id = thread_of(lg, "ada")
    assert lg.ask("GET", f"/threads/{thread_id}")["metadata"]["owner"] == "ada"
    assert httpx.get(f"{lg.url}/ok").json() == {"ok": True}


def test_a_websocket_needs_a_key(lg: Lg) -> None:
    answer = httpx.get(
        f"{lg.url}/threads/{thread_of(lg, 'ada')}/stream/events",
        headers=headers("ada") | {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
                                  "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="},
    )  # fmt: skip
    assert answer.status_code == 403
