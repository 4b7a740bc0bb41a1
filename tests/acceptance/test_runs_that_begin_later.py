"""A client's run that begins later: pending until then, once, also over kill -9 of every process."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.test_langgraph_clients import KILLS
from tests.support.langgraph import Lg, constellation_with_web, said
from turnkeeper.gateway.lg.crons import later_turn
from turnkeeper.v1 import schedules_pb2 as schedules

pytestmark = pytest.mark.process
RUN: dict[str, Any] = {"assistant_id": "agent0", "input": said("Hello", id="m1"), "metadata": {"order": 7}}
HOUR = {"after_seconds": 3600}


@pytest.fixture(scope="module")
def lg() -> Iterator[Lg]:
    with constellation_with_web() as found:
        yield found


def status_of(lg: Lg, run: dict[str, Any]) -> str:
    found: str = lg.ask("GET", f"/threads/{run['thread_id']}/runs/{run['run_id']}")["status"]
    return found


def test_a_run_begins_after_its_seconds_and_keeps_its_id_and_options(lg: Lg) -> None:
    place = f"/threads/{lg.thread()}/runs"
    run = lg.ask("POST", place, RUN | {"after_seconds": 1})
    assert (run["status"], run["metadata"]["order"]) == ("pending", 7)
    assert [one["run_id"] for one in lg.ask("GET", place)] == [run["run_id"]]
    lg.constellation.until("the run", lambda: status_of(lg, run) == "success")
    (listed,) = lg.ask("GET", place)
    assert (listed["run_id"], listed["status"], listed["metadata"]["order"]) == (run["run_id"], "success", 7)
    person = lg.ask("GET", f"{place}/{run['run_id']}/join")["messages"][0]
    assert (person["type"], person["content"], person["id"]) == ("human", "Hello", "m1")


def test_braces_in_the_text_of_a_run_that_begins_later_are_no_variables(lg: Lg) -> None:
    place, text = f"/threads/{lg.thread()}/runs", "Explain {{ user.name }} and {{ time }}"
    run = lg.ask("POST", place, RUN | {"input": said(text), "after_seconds": 1})
    lg.constellation.until("the run", lambda: status_of(lg, run) == "success")
    assert lg.ask("GET", f"{place}/{run['run_id']}/join")["messages"][0]["content"] == text
    (turn,) = [turn for turn in lg.constellation.conversation() if "user.name" in str(turn)]
    assert next(one["text"] for one in turn["messages"] if one["role"] == "trigger") == text


def test_a_run_begins_once_although_every_process_is_killed(lg: Lg) -> None:
    place = f"/threads/{lg.thread()}/runs"
    run = lg.ask("POST", place, RUN | {"after_seconds": 2})
    for process in ("gateway", "runtime", "runner"):
        KILLS[process](lg)
    lg.constellation.until("the run", lambda: status_of(lg, run) == "success")
    assert [one["status"] for one in lg.ask("GET", place)] == ["success"]


def test_a_run_that_has_not_begun_is_cancelled_and_does_not_begin(lg: Lg) -> None:
    thread = lg.thread()
    place = f"/threads/{thread}/runs"
    run = lg.ask("POST", place, RUN | HOUR)
    assert lg.ask("POST", f"{place}/{run['run_id']}/cancel?wait=1")["status"] == "interrupted"
    assert [one["status"] for one in lg.ask("GET", place)] == ["interrupted"]
    other = lg.ask("POST", place, RUN | HOUR)
    lg.ask("DELETE", f"/threads/{thread}", status=204)
    task = lg.constellation.ask("task-runner", "show", other["run_id"])
    assert task["state"] == "disabled"


@pytest.mark.parametrize("stateless", [False, True])
def test_a_run_that_begins_later_is_streamed_and_waited_for_from_its_beginning(lg: Lg, stateless: bool) -> None:
    place = "/runs" if stateless else f"/threads/{lg.thread()}/runs"
    events = lg.stream(f"{place}/stream", RUN | {"after_seconds": 1, "stream_mode": ["values", "updates"]})
    names = [name for name, _ in events]
    assert (names[0], names[-1]) == ("metadata", "end")
    assert {"values", "updates"} <= set(names)
    waited = lg.ask("POST", f"{place}/wait", RUN | {"input": said("Again"), "after_seconds": 1})
    assert (waited["messages"][0]["content"], waited["messages"][-1]["type"]) == (
        "Again" if stateless else "Hello",
        "ai",
    )
    assert "Again" in [one["content"] for one in waited["messages"]]


def test_a_run_of_a_batch_begins_later_beside_one_that_begins_now(lg: Lg) -> None:
    first, now = lg.ask("POST", "/runs/batch", [RUN | HOUR, RUN])
    assert (first["status"], first["metadata"]["order"]) == ("pending", 7)
    lg.constellation.until("the other run", lambda: status_of(lg, now) == "success")
    assert status_of(lg, first) == "pending"


def test_a_client_that_joins_a_run_before_it_begins_is_answered_at_its_end_or_at_its_cancel(lg: Lg) -> None:
    place = f"/threads/{lg.thread()}/runs"
    run = lg.ask("POST", place, RUN | {"after_seconds": 1})["run_id"]
    assert lg.ask("GET", f"{place}/{run}/join")["messages"][-1]["type"] == "ai"
    run = lg.ask("POST", place, RUN | HOUR)["run_id"]
    events = lg.stream(f"{place}/{run}/stream", then=lambda: lg.ask("POST", f"{place}/{run}/cancel"))
    assert [name for name, _ in events][:: len(events) - 1] == ["metadata", "end"]


def test_a_run_that_is_due_while_the_runtime_is_away_is_pending() -> None:
    task = schedules.Task(state="done", reason="it fired")
    assert later_turn(task, [schedules.Fire(outcome="pending")]).status == "accepted"
    assert later_turn(task, [schedules.Fire(outcome="skipped")]).status == "failed"


def test_a_repeated_request_makes_one_run(lg: Lg) -> None:
    place, key = f"/threads/{lg.thread()}/runs", {"idempotency-key": "later"}
    first, again = (lg.ask("POST", place, RUN | HOUR, headers=key)["run_id"] for _ in range(2))
    assert first == again
    assert len(lg.ask("GET", place)) == 1
    assert lg.ask("POST", "/runs/crons/search", {"thread_id": place.split("/")[2]}) == [], "a run is no cron"


@pytest.mark.parametrize(
    "more",
    [
        {"after_seconds": -1},
        {"after_seconds": "soon"},
        HOUR | {"command": {"resume": "yes"}},
        HOUR | {"checkpoint_id": "1"},
        HOUR | {"multitask_strategy": "interrupt"},
        HOUR | {"input": None},
    ],
)
def test_what_a_run_that_begins_later_cannot_have_is_refused(lg: Lg, more: dict[str, Any]) -> None:
    place = f"/threads/{lg.thread()}/runs"
    refused = lg.ask("POST", place, RUN | more, status=422)
    assert refused["instead"]
    assert lg.ask("GET", place) == []
