"""Ledger entries move one way, whatever order the news comes in."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_runner.model.task import OPEN, Fire, Outcome, TaskId
from task_runner.planner import ledger
from task_runner.planner.ledger import TurnState
from tests.unit.task_runner.simulated import at

FIRE = Fire(
    task_id=TaskId("task-00000001"), fire_id="task-00000001@20260302T090100Z", entry_id=1, outcome=Outcome.PENDING,
    nominal_at=at(60), due_at=at(60), first_at=at(60), last_at=at(60), ready_at=at(60),
)  # fmt: skip
SENT = ledger.sent(FIRE, at(61))


@pytest.mark.parametrize(
    ("state", "outcome", "reason"),
    [
        (TurnState.STARTED, "running", ""),
        (TurnState.RESUMED, "running", ""),
        (TurnState.INTERRUPTED, "interrupted", ""),
        (TurnState.HELD, "held", "it broke"),
        (TurnState.PAUSED, "succeeded", "paused"),
        (TurnState.SUCCEEDED, "succeeded", ""),
        (TurnState.SILENT, "succeeded", "silent"),
        (TurnState.DELIVERED, "succeeded", "delivered"),
        (TurnState.FAILED, "failed", "it broke"),
        (TurnState.CANCELLED, "cancelled", ""),
    ],
)
def test_each_event_means_one_outcome(state, outcome, reason) -> None:
    error = "it broke" if state in {TurnState.FAILED, TurnState.HELD} else ""
    moved = ledger.turned(SENT, state, at(70), attempt=1, error=error)
    assert (moved.outcome.value, moved.reason) == (outcome, reason)
    assert moved.accepted_at == at(70), "an event says that the fire was accepted, also when its receipt was lost"


@pytest.mark.parametrize("state", [TurnState.SUCCEEDED, TurnState.SILENT])
@pytest.mark.parametrize("error", ["its approval was rejected: send_mail", "its approval expired: no answer within 1d"])
def test_a_turn_without_what_it_asked_for_is_rejected_with_the_reason(state: TurnState, error: str) -> None:
    for said in (error, f"{error}; note was allowed by standing exception 3"):
        moved = ledger.turned(SENT, state, at(70), attempt=1, error=said)
        assert (moved.outcome, moved.reason, moved.ended_at) == (Outcome.REJECTED, said, at(70))
    assert Outcome.REJECTED not in OPEN
    for other, outcome in ((TurnState.PAUSED, "succeeded"), (TurnState.FAILED, "failed")):
        assert ledger.turned(SENT, other, at(70), attempt=1, error=error).outcome == outcome


@pytest.mark.parametrize("state", [TurnState.STARTED, TurnState.HELD, TurnState.SUCCEEDED, TurnState.FAILED])
def test_what_ran_was_sent_though_its_sending_was_taken_for_refused(state) -> None:
    refused = ledger.refused(SENT, at(62), attempt=1, why="no room")
    assert ledger.accepted(refused, at(63), attempt=1, turn_id="turn").fired_at == at(63)
    for unsent in (refused, FIRE):  # as a runner's store that was restored to before the sending knows it
        assert ledger.turned(unsent, state, at(64), attempt=1).fired_at == at(64)
    assert ledger.turned(SENT, state, at(64), attempt=1).fired_at == at(61)


def test_a_receipt_after_the_outcome_changes_no_outcome() -> None:
    running = ledger.turned(SENT, TurnState.STARTED, at(62), attempt=1)
    assert ledger.accepted(running, at(63), attempt=1, turn_id="turn").outcome is Outcome.RUNNING
    settled = ledger.turned(running, TurnState.SUCCEEDED, at(64), attempt=1)
    assert ledger.accepted(settled, at(65), attempt=1, turn_id="turn") is settled
    assert ledger.turned(settled, TurnState.STARTED, at(66), attempt=1) is settled


def test_news_of_a_turn_that_overtakes_its_receipt_dates_the_acceptance() -> None:
    accepted = ledger.accepted(SENT, at(64), attempt=1, turn_id="turn")
    running = ledger.turned(accepted, TurnState.STARTED, at(63), attempt=1)
    assert (running.accepted_at, running.started_at) == (at(63), at(63))
    settled = ledger.turned(accepted, TurnState.SUCCEEDED, at(65), attempt=1)
    assert (settled.accepted_at, settled.ended_at) == (at(64), at(65))


def test_no_turn_starts_before_its_fire_was_sent_or_ends_before_it_started_whatever_a_clock_says() -> None:
    running = ledger.turned(SENT, TurnState.STARTED, at(40), attempt=1)
    assert (running.fired_at, running.accepted_at, running.started_at) == (at(61), at(61), at(61))
    settled = ledger.turned(running, TurnState.SUCCEEDED, at(50), attempt=1)
    assert (settled.started_at, settled.ended_at) == (at(61), at(61))


def test_a_release_begins_the_next_attempt_and_old_news_is_ignored() -> None:
    held = ledger.turned(SENT, TurnState.HELD, at(62), attempt=1, error="waits for approval a")
    assert ledger.turned(held, TurnState.RELEASED, at(90), attempt=1).reason == ""
    again = ledger.turned(held, TurnState.RELEASED, at(90), attempt=1, error="approval a expired")
    assert again.reason == "approval a expired"
    assert (again.outcome, again.attempt, again.fired_at) == (Outcome.PENDING, 2, None)
    assert ledger.turned(again, TurnState.SUCCEEDED, at(91), attempt=1) is again
    assert ledger.accepted(again, at(91), attempt=1, turn_id="") is again
    assert ledger.turned(SENT, TurnState.RELEASED, at(62), attempt=1) is SENT, "only what is held is released"


def test_a_failed_turn_is_tried_again_under_the_same_id_after_pauses_that_double() -> None:
    fire, pauses = replace(SENT, retries=2, accepted_at=at(61)), []
    for _ in range(2):
        fire = ledger.turned(fire, TurnState.FAILED, at(70), attempt=fire.attempt, error="it broke")
        assert (fire.outcome, fire.fire_id, fire.fired_at) == (Outcome.PENDING, FIRE.fire_id, None)
        assert fire.reason == f"attempt {fire.attempt - 1} failed: it broke"
        pauses.append((fire.ready_at - at(70)).total_seconds())
        fire = ledger.sent(fire, fire.ready_at)
    assert (pauses, fire.attempt, fire.retries) == ([30, 60], 3, 0)
    settled = ledger.turned(fire, TurnState.FAILED, at(200), attempt=3, error="still broken")
    assert (settled.outcome, settled.reason) == (Outcome.FAILED, "still broken")
    assert ledger.turned(fire, TurnState.FAILED, at(200), attempt=2) is fire, "news of an attempt that is over"


def test_a_cancelled_turn_is_not_tried_again() -> None:
    fire = ledger.turned(replace(SENT, retries=2), TurnState.CANCELLED, at(70), attempt=1)
    assert fire.outcome is Outcome.CANCELLED


def test_a_refusal_makes_unsent_again_with_a_growing_pause() -> None:
    pauses, fire = [], SENT
    for _ in range(12):
        refused = ledger.refused(fire, at(100), attempt=1, why="full")
        assert (refused.outcome, refused.fired_at, refused.reason) == (Outcome.PENDING, None, "full")
        pauses.append((refused.ready_at - at(100)).total_seconds())
        fire = ledger.sent(refused, at(200))
    assert pauses[:4] == [0.5, 1, 2, 4]
    assert max(pauses) == 60
    assert ledger.refused(FIRE, at(1), attempt=1, why="") is FIRE
    assert ledger.refused(SENT, at(1), attempt=2, why="") is SENT


def test_sending_again_keeps_the_first_time_so_that_the_bytes_are_the_same() -> None:
    assert ledger.sent(SENT, at(500)).fired_at == at(61)


def test_what_the_runtime_forgot_is_sent_again() -> None:
    running = ledger.turned(SENT, TurnState.STARTED, at(62), attempt=1, turn_id="turn")
    forgotten = ledger.forgotten(running)
    assert (forgotten.outcome, forgotten.attempt, forgotten.turn_id) == (Outcome.SENT, 1, "")


@given(st.lists(st.tuples(st.sampled_from([*TurnState, "receipt"]), st.integers(1, 3)), max_size=12))
def test_no_order_of_news_reopens_a_settled_fire_or_lowers_its_attempt(news) -> None:
    fire, settled = SENT, None
    for number, (what, attempt) in enumerate(news):
        before = fire
        if what == "receipt":
            fire = ledger.accepted(fire, at(100 + number), attempt=attempt, turn_id="t")
        else:
            fire = ledger.turned(fire, what, at(100 + number), attempt=attempt)
        assert fire.attempt >= before.attempt
        assert settled is None or fire is settled
        settled = fire if fire.outcome not in OPEN else None
        again = fire if what == "receipt" else ledger.turned(fire, what, at(500), attempt=attempt)
        if what not in {"receipt", TurnState.RELEASED}:
            assert replace(again, ended_at=fire.ended_at) == fire, "the same news twice is news once"
