"""A client's run tells its end at a webhook: signed, at least once, and only at hosts that the owner allows."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.test_deliveries import STEPS, add, allow, delivering, kill
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
        assert (body["status"], body["thread_id"], body["metadata"]) == ("success", thread, {"order": 7})
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
