"""The timeline's pure part: order, steps that two sources tell, what a record belongs to, and the sentences."""

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_tidy import own_modules
from turnkeeper.constellation.timeline import records
from turnkeeper.constellation.timeline.records import Filter, Known, Record, linked, merge
from turnkeeper.constellation.timeline.sentences import SENTENCES, say

SECOND = 1_000_000


def told(at: int, kind: str, source: str = "trail", **fields: Any) -> Record:
    return Record(at, source, kind, "task-runner", fields)


def kinds(*streams: list[Record]) -> list[tuple[str, str]]:
    return [(record.kind, record.source) for record in merge(streams)]


def known(**turns: dict[str, Any]) -> Known:
    return Known(turn=turns.get, question={"q-1": {"turn_id": "turn-1"}}.get, task={"task-1": {"task": "nightly"}}.get)


def test_a_step_that_a_trail_and_a_store_tell_is_told_once_by_the_trail() -> None:
    trail = [told(2, "fire.sent", fire_id="f", attempt=1), told(9, "turn.stopped", turn_id="t", state="succeeded")]
    store = [
        told(1, "fire.sent", "schedules.db", fire_id="f", attempt=1),
        told(3, "fire.sent", "schedules.db", fire_id="f", attempt=2),
        told(8, "turn.stopped", "agent.db", turn_id="t", fire_id="f", state="succeeded"),
    ]
    assert kinds(trail, store) == [("fire.sent", "trail"), ("fire.sent", "schedules.db"), ("turn.stopped", "trail")]


def test_what_the_trail_lost_is_told_by_the_store() -> None:
    trail = [told(1, "turn.started", turn_id="t", mode="resume")]
    store = [told(at, "turn.started", "agent.db", turn_id="t", mode="resume") for at in (2, 3)]
    assert kinds(trail, store) == [("turn.started", "trail"), ("turn.started", "agent.db")]
    far = [told(records.TWIN_WINDOW_US + 3, "turn.started", "agent.db", turn_id="t", mode="resume")]
    assert len(kinds(trail, far)) == 2, "a step an hour later is another one"


@given(st.lists(st.tuples(st.integers(0, 200 * SECOND), st.sampled_from("abc"), st.booleans()), max_size=60))
def test_every_step_is_told_in_order_and_none_is_lost(steps: list[tuple[int, str, bool]]) -> None:
    steps.sort()
    trail = [told(at, "fire.sent", fire_id=one, attempt=at) for at, one, _ in steps]
    store = [told(at, "fire.sent", "schedules.db", fire_id=one, attempt=at) for at, one, also in steps if also]
    merged = list(merge([trail, store]))
    assert [record.at_us for record in merged] == [at for at, _, _ in steps]
    assert {record.source for record in merged} <= {"trail"}


def test_a_long_timeline_is_never_held_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MOST_HELD", 50)
    read = 0

    def endless(source: str) -> Iterator[Record]:
        nonlocal read
        for at in range(2_000):
            read += 1
            yield told(at, "fire.sent", source, fire_id="f", attempt=at)

    most = 0
    for count, _ in enumerate(merge([endless("trail"), endless("schedules.db")]), 1):
        most = max(most, read - 2 * count)
    assert count == 2_000
    assert most <= 60


def test_a_record_is_completed_by_what_was_said_before_and_by_the_stores() -> None:
    names = known()
    assert names.complete(told(1, "fire.committed", fire_id="task-1@20261122T020000Z")).fields["task"] == "nightly"
    names.complete(told(2, "fire.received", fire_id="task-1@20261122T020000Z", turn_id="turn-1"))
    names.complete(told(3, "turn.started", turn_id="turn-1", thread_id="desk"))
    answered = names.complete(told(4, "interrupt.resolved", interrupt_id="q-1")).fields
    assert (answered["turn_id"], answered["thread_id"], answered["task"]) == ("turn-1", "desk", "nightly")


def test_a_task_that_was_created_in_the_trail_has_its_name_without_any_store() -> None:
    names = Known(*[lambda _: None] * 3)
    names.complete(told(1, "task.created", task_id="task-7", name="weekly"))
    assert names.complete(told(2, "fire.sent", fire_id="task-7@20261122T020000Z")).fields["task"] == "weekly"


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        (Filter(), True),
        (Filter(kinds=frozenset({"fire"})), True),
        (Filter(kinds=frozenset({"fire.sent"})), True),
        (Filter(kinds=frozenset({"turn", "fire.settled"})), False),
        (Filter(task="nightly"), True),
        (Filter(task="task-1"), True),
        (Filter(task="other"), False),
        (Filter(agent="agent0", channel="ops", thread="desk", turn="turn-1"), True),
        (Filter(agent="agent1"), False),
        (Filter(channel="general"), False),
    ],
)
def test_a_filter_takes_what_belongs_to_all_that_it_names(chosen: Filter, taken: bool) -> None:
    of = {"task_id": "task-1", "task": "nightly", "agent": "agent0", "channel": "ops", "turn_id": "turn-1"}
    assert chosen.takes(told(1, "fire.sent", thread_id="desk", **of)) is taken


def test_a_story_follows_the_ids_and_not_the_thread_or_the_task() -> None:
    start = frozenset({"q-1"})
    assert linked(told(1, "interrupt.raised", interrupt_id="q-1", turn_id="turn-1"), start) == {"q-1", "turn-1"}
    assert linked(told(1, "act.done", subject="q-0, q-1"), start) == start
    assert not linked(told(1, "turn.started", turn_id="turn-2", thread_id="desk", task_id="task-1"), start)
    restart = frozenset({"20261122T010203.000004Z-planned-0001"})
    assert linked(told(1, "restart.begun", id=next(iter(restart))), restart) == restart


def test_a_sentence_names_who_did_what_and_leaves_out_what_is_not_known() -> None:
    def at(instant: datetime) -> str:
        return instant.astimezone(UTC).strftime("%H:%M")

    asked = told(1, "interrupt.raised", interrupt_id="q-1", turn_id="turn-1", tool="")
    assert say(asked, at) == "the agent runtime asked the author, in turn turn-1; the question is q-1."
    sent = told(1, "fire.committed", fire_id="f", task="nightly", due_at="2026-11-22T02:00:00Z")
    assert say(sent, at) == "the task runner recorded fire f of task nightly, due 02:00."
    assert say(told(1, "fire.settled", fire_id="f", outcome="succeeded", reason=""), at) == (
        "the task runner recorded that fire f of task (unknown) ended as succeeded."
    )
    night = sent._replace(fields={**sent.fields, "count": 3, "first_nominal_at": "2026-11-22T00:00:00Z"})
    night = night._replace(fields={**night.fields, "last_nominal_at": "2026-11-22T02:00:00Z"})
    assert say(night, at).endswith("due 02:00; it stands for 3 scheduled times, from 00:00 to 02:00.")
    assert say(told(1, "fire.settled", fire_id="f", outcome="coalesced", reason="g"), at) == (
        "the task runner recorded that fire f of task (unknown) ended as coalesced; it is part of fire g."
    )
    assert say(told(1, "process.started", pid=8), at) == "task-runner serves (pid 8)."
    assert "the process before it, pid 7, did not shut down cleanly" in say(
        told(1, "process.started", pid=8, after=7), at
    )
    assert say(told(1, "turn.stopped", turn_id="t", state="interrupted"), at) == (
        "the agent runtime recorded that turn t waits for the author's decision."
    )


def test_who_was_not_there_reads_why_and_not_a_code() -> None:
    late = told(0, "fire.committed", fire_id="f", task="nightly", due_at="1969-12-31T02:00:00Z", policy="run-once")
    assert say(late, lambda _: "02:00").endswith("due 02:00; that was 22h late, and its catch-up policy is run-once.")
    skipped = told(1, "fire.skipped", task="t", count=1, reason="missed")
    assert say(skipped, str).endswith(": missed (it was not sent in time, and catch-up skip runs no missed fire).")
    assert say(skipped._replace(fields={"reason": "paused"}), str).endswith(": paused.")
    start = told(1, "daemon.started", daemon="agent-runtime", started=7, crashed=True, reason="ended by signal 9")
    assert say(start, str).endswith("(pid 7), because it had ended unplanned (ended by signal 9).")
    phases = [say(told(1, "restart.phase", id="r", phase=phase), str) for phase in ("up-detected", "failed")]
    assert phases == ["the start r found that the new process answers.", "the start r reached the phase failed."]
    alert = told(1, "escalate", daemon="task-runner", key="17", reason="it ended 3 times: ended by signal 9")
    assert say(alert, str) == (
        "the supervisor alerts the author about task-runner: it ended 3 times: ended by signal 9."
    )
    done = told(1, "escalate.done", marker="escalate-failed-17-task-runner", route="command")
    assert say(done, str).endswith("delivered the alert to the author by the command that config.toml names.")


def test_a_disabled_loop_is_told_to_be_stopped() -> None:
    said = [say(told(1, "task.disabled", task_id=name, task=name), str) for name in ("loop-1", "task-1")]
    assert said == ["the task runner stopped task loop-1.", "the task runner disabled task task-1."]


def test_a_kind_that_a_later_version_writes_is_told_too() -> None:
    assert say(told(1, "moon.rose", phase="full"), str) == "task-runner reported moon.rose: phase full."


def test_every_kind_that_the_programs_write_has_a_sentence() -> None:
    written: set[Any] = set()
    for path in own_modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                written |= {one.value for one in node.args[:1] if isinstance(one, ast.Constant)}
    assert written
    assert not {kind for kind in written if "." in kind} - SENTENCES.keys()
