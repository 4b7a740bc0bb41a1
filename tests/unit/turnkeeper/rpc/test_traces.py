"""Which spans the records of the event log make: of fires that fail, are sent again or are not known from the beginning."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.support.clock import ManualClock
from turnkeeper.bus.event_log import EventLog
from turnkeeper.config.home import Home
from turnkeeper.config.settings import TracesSettings
from turnkeeper.rpc import traces
from turnkeeper.rpc.traces import FireSpans, Tracing, TurnSpans, traceparent_of

FIRE = {"fire_id": "fire-1", "task_id": "task-1", "attempt": 1}
PLANNED = {"kind": "scheduled", "nominal_at": "t", "due_at": "t", "count": 1, "policy": "skip"}
TURN = {
    "turn_id": "turn-1",
    "thread_id": "desk",
    "fire_id": "fire-1",
    "attempt": 1,
    "agent": "agent0",
    "trigger": "fire",
}


class Bench:
    def __init__(self, home: Home, clock: ManualClock) -> None:
        self.exporter, self.clock = InMemorySpanExporter(), clock
        self.log = EventLog(home.logs, "task-runner", clock)
        self.tracing = Tracing("task-runner", TracesSettings(enabled=True), clock, self.exporter)

    def spans(self) -> list[Any]:
        self.tracing.close()
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def bench(home: Home, clock: ManualClock) -> Iterator[Bench]:
    made = Bench(home, clock)
    yield made
    made.log.close()


def ids(span: Any) -> tuple[str, str]:
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def test_every_attempt_of_a_fire_is_in_the_trace_that_its_id_names(bench: Bench) -> None:
    FireSpans(bench.tracing, bench.log)
    bench.log.emit("fire.committed", **FIRE, **PLANNED)
    bench.log.emit("fire.accepted", **FIRE, disposition="ACCEPTED")
    bench.log.emit("fire.accepted", **FIRE, disposition="DUPLICATE")
    bench.log.emit("fire.accepted", **FIRE | {"attempt": 2}, disposition="ACCEPTED")
    bench.log.emit("fire.settled", **FIRE | {"attempt": 2}, outcome="failed", reason="")
    first, again, end = bench.spans()
    _, trace_id, span_id, _ = traceparent_of("fire-1").split("-")
    assert (ids(first), first.parent, first.name) == ((trace_id, span_id), None, "fire")
    assert first.attributes["turnkeeper.fire.kind"] == "scheduled"
    assert [(span.name, ids(span)[0], f"{span.parent.span_id:016x}") for span in (again, end)] == [
        ("fire again", trace_id, span_id),
        ("settle fire", trace_id, span_id),
    ]
    assert [span.status.status_code for span in (first, again, end)] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


def test_a_runner_that_did_not_plan_the_fire_itself_still_makes_its_first_span(bench: Bench) -> None:
    FireSpans(bench.tracing, bench.log)
    bench.log.emit("fire.accepted", **FIRE, disposition="ACCEPTED")
    (first,) = bench.spans()
    assert ids(first) == tuple(traceparent_of("fire-1").split("-")[1:3])


def test_each_interval_of_a_turn_is_a_span_and_says_how_it_stopped(bench: Bench) -> None:
    turns = TurnSpans(bench.tracing, bench.log)
    for mode, state in (("start", "interrupted"), ("resume", "failed")):
        bench.log.emit("turn.started", **TURN, mode=mode, traceparent=traceparent_of("fire-1"))
        assert turns.of("turn-1") is not None
        bench.log.emit("turn.stopped", turn_id="turn-1", thread_id="desk", state=state)
    bench.log.emit("turn.stopped", turn_id="turn-1", thread_id="desk", state="failed")
    asked, failed = bench.spans()
    assert [span.attributes["turnkeeper.turn.state"] for span in (asked, failed)] == ["interrupted", "failed"]
    assert [span.status.status_code for span in (asked, failed)] == [StatusCode.UNSET, StatusCode.ERROR]
    assert {f"{span.parent.span_id:016x}" for span in (asked, failed)} == {traceparent_of("fire-1").split("-")[2]}
    assert turns.of("turn-1") is None


def test_a_turn_that_no_fire_started_has_a_trace_of_its_own(bench: Bench) -> None:
    TurnSpans(bench.tracing, bench.log)
    bench.log.emit("turn.started", **TURN | {"fire_id": "", "trigger": "message"}, mode="start")
    bench.log.emit("turn.stopped", turn_id="turn-1", thread_id="desk", state="succeeded")
    (span,) = bench.spans()
    assert span.parent is None
    assert "turnkeeper.fire.id" not in span.attributes


def test_what_never_ends_is_forgotten_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_OPEN", 2)
    turns = TurnSpans(bench.tracing, bench.log)
    for number in range(4):
        bench.log.emit("turn.started", **TURN | {"turn_id": f"turn-{number}"}, mode="start")
    assert [turns.of(f"turn-{number}") is not None for number in range(4)] == [False, False, True, True]
