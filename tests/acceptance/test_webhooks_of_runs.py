"""A client's run tells its end at a webhook: signed, at least once, and only at hosts that the owner allows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.test_deliveries import STEPS, add, allow, delivering, kill, log_of
from tests.support.constellation import Constellation
from tests.support.langgraph import Lg, constellation_with_web, said
from tests.support.program import DELIVERY
from tests.support.receivers import Hook, Request, is_signed, opened
from turnkeeper.constellation.supervisor.daemons import AGENT_RUNTIME
from turnkeeper.rpc.process import VARIABLE

pytestmark = pytest.mark.process


@pytest.fixture
def lg() -> Iterator[Lg]:
    with constellation_with_web() as found:
        yield found


@pytest.fixture
def hook() -> Iterator[Hook]:
    with opened(Hook()) as made:
        yield made


def run(url: str) -> dict[str, Any]:
    return {"assistant_id": "agent0", "input": said("Hello"), "metadata": {"order": 7}, "webhook": url}


def arrived(place: Constellation, hook: Hook, run_id: str) -> Request:
    def about() -> list[Request]:
        return [one for one in hook.requests if json.loads(one.body)["run_id"] == run_id]

    place.until("the webhook", about)
    return about()[-1]


def test_the_end_of_a_run_and_its_wait_arrive_signed_with_the_values(lg: Lg, hook: Hook) -> None:
    allow(lg.constellation, hook.place)
    secret = add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    with delivering(lg.constellation):
        thread = lg.thread()
        started = lg.ask("POST", f"/threads/{thread}/runs", run(f"http://{hook.place}/in?a=1"))
        told = arrived(lg.constellation, hook, started["run_id"])
        assert told.path == "/in?a=1"
        assert is_signed(told, secret)
        body = json.loads(told.body)
        shown = lg.ask("GET", f"/threads/{thread}/runs/{started['run_id']}")
        assert (body["status"], body["thread_id"], body["metadata"]["order"]) == ("success", thread, 7)
        assert body["metadata"].items() <= shown["metadata"].items()
        assert body["values"] == lg.ask("GET", f"/threads/{thread}/state")["values"]
        lg.turn(thread)
        lg.ask("POST", "/threads", {})
    assert len(hook.requests) == 1, "a run that names no webhook tells nothing"


def test_only_hosts_that_the_owner_allows_are_told_and_a_refusal_names_what_to_set(lg: Lg, hook: Hook) -> None:
    place, url = f"/threads/{lg.thread()}/runs", f"http://{hook.place}/in"
    off = lg.ask("POST", place, run(url), status=403)
    assert "[delivery]" in off["instead"]
    allow(lg.constellation, hook.place, "127.0.0.1:1")
    add(lg.constellation, "elsewhere", "--on", "run", "--webhook", "http://127.0.0.1:1/")
    unknown = lg.ask("POST", place, run(url), status=403)
    assert unknown["code"] == "denied"
    assert unknown["instead"] == f"turnkeeper deliver add NAME --on run --webhook http://{hook.place}"
    add(lg.constellation, "tasks", "--webhook", f"http://{hook.place}/")
    lg.ask("POST", place, run(url), status=403)
    for wrong in ("file:///etc/passwd", "nothing"):
        assert "http or https" in lg.ask("POST", place, run(wrong), status=422)["detail"]
    assert lg.ask("GET", place) == [], "nothing was begun"


@pytest.mark.parametrize("step", STEPS)
def test_a_webhook_is_told_although_the_process_is_killed(lg: Lg, hook: Hook, step: str) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    lg.constellation.start(DELIVERY, **{VARIABLE: f"delivery.{step}"})
    started = lg.ask("POST", f"/threads/{lg.thread()}/runs", run(f"http://{hook.place}/in"))
    lg.constellation.until_dead(DELIVERY)
    with delivering(lg.constellation):
        told = arrived(lg.constellation, hook, started["run_id"])
        assert json.loads(told.body)["status"] == "success"
    keys = {one.key for one in hook.requests}
    assert len(keys) == 1, "a repetition has the same key"


def test_a_run_that_ended_while_nothing_delivered_is_told_after_the_runtime_died(lg: Lg, hook: Hook) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    with delivering(lg.constellation):
        pass
    started = lg.ask("POST", f"/threads/{lg.thread()}/runs/wait", run(f"http://{hook.place}/in"))
    assert started["messages"]
    lg.constellation.kill(AGENT_RUNTIME)
    kill(lg.constellation)
    lg.constellation.start(AGENT_RUNTIME)
    with delivering(lg.constellation):
        lg.constellation.until("the webhook", lambda: hook.requests)


UNUSABLE = (
    *("file:///etc/passwd", "javascript:alert(1)", "ftp://127.0.0.1/", "//127.0.0.1/", "http:///in", "http:in"),
    *(
        "http://[x/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:x/",
        "http://a\uff0fb/",
        "http://127.0.0.1/\u2028",
        "http://127.0\t.0.1/",
        "http://127.0.0.1/in\r\nHost: elsewhere.example",
        "http://127.0.0.1/in HTTP/1.1\nX-Key: forged",
        "http://127.0.0.1/\0",
    ),
)


def test_an_address_that_no_request_can_reach_is_refused_by_its_form(lg: Lg, hook: Hook) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    place = f"/threads/{lg.thread()}/runs"
    statuses = {url: lg.http.post(path, json=run(url)).status_code for url in UNUSABLE for path in (place, "/runs")}
    assert statuses == dict.fromkeys(UNUSABLE, 422)
    assert lg.ask("GET", place) == []


def test_an_address_at_the_allowed_host_leads_nowhere_else(lg: Lg, hook: Hook) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    place, port = f"/threads/{lg.thread()}/runs", hook.place.rpartition(":")[2]
    for url in (
        f"{lg.url}/threads",
        f"https://{hook.place}/",
        f"http://localhost:{port}/",
        f"http://127.0.0.1.example:{port}/",
        f"http://{hook.place}\\@elsewhere.example/",
        f"http://{hook.place}@elsewhere.example/",
        f"http://someone:secret@{hook.place}/",
        f"http://127.0.0.1%00.elsewhere.example:{port}/",
        f"http://127.0.0.1%2eelsewhere.example:{port}/",
    ):
        assert "secret" not in lg.refused("POST", place, run(url), status=403)
        thread = place.split("/")[2]
        lg.ask("POST", "/runs/batch", [run(url) | {"thread_id": thread}], status=403)
        lg.ask("POST", place, run("") | {"config": {"webhook": url}}, status=422)
    assert lg.ask("GET", place) == []


def test_a_host_that_the_settings_do_not_allow_gets_nothing_although_a_target_names_it(lg: Lg, hook: Hook) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    allow(lg.constellation)
    with delivering(lg.constellation):
        lg.ask("POST", f"/threads/{lg.thread()}/runs", run(f"http://{hook.place}/in"))
        lg.constellation.until("it to end", lambda: [one["state"] for one in log_of(lg.constellation)] == ["given up"])
    assert hook.requests == []


def test_a_redirect_of_an_allowed_host_is_not_followed(lg: Lg, hook: Hook) -> None:
    with opened(Hook()) as other:
        allow(lg.constellation, hook.place, other.place)
        add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
        hook.statuses, hook.headers = [307], {"location": f"http://{other.place}/"}
        with delivering(lg.constellation):
            lg.ask("POST", f"/threads/{lg.thread()}/runs", run(f"http://{hook.place}/in"))
            lg.constellation.until(
                "the reason", lambda: [one["reason"] for one in log_of(lg.constellation)] == ["status 307"]
            )
        assert other.requests == []


@pytest.mark.parametrize("odd", ["/\u00fc", "/a b?c=\u00fc d"])
def test_an_odd_address_does_not_stop_the_deliveries_of_others(lg: Lg, hook: Hook, odd: str) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    place = f"/threads/{lg.thread()}/runs"
    with delivering(lg.constellation):
        first = lg.ask("POST", place, run(f"http://{hook.place}{odd}"))
        then = lg.ask("POST", place, run(f"http://{hook.place}/in"))
        assert arrived(lg.constellation, hook, first["run_id"]).path.isascii()
        assert arrived(lg.constellation, hook, then["run_id"]).path == "/in"


def test_the_end_of_a_run_is_told_although_its_thread_was_deleted(lg: Lg, hook: Hook) -> None:
    allow(lg.constellation, hook.place)
    add(lg.constellation, "runs", "--on", "run", "--webhook", f"http://{hook.place}/")
    with delivering(lg.constellation):
        pass
    thread = lg.thread()
    started = lg.ask("POST", f"/threads/{thread}/runs", run(f"http://{hook.place}/in"))
    lg.ask("GET", f"/threads/{thread}/runs/{started['run_id']}/join")
    lg.ask("DELETE", f"/threads/{thread}", status=204)
    with delivering(lg.constellation):
        told = json.loads(arrived(lg.constellation, hook, started["run_id"]).body)
    assert (told["status"], told["values"]) == ("success", None)
