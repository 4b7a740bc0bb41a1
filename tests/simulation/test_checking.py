"""The checker of a run is proved: the history of a real run passes, and each planted violation in it is reported."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.checking import RULES, History, check
from tests.simulation.delivering import WAYS
from tests.simulation.script import RUNTIME, Act, Fault, Script, Task
from tests.simulation.world import run

S = 1_000_000
Plant = Callable[[History], Any]
CALM = Script(
    seed=12,
    tasks=(
        Task("all", 20, "run-all"),
        Task("once", 30, "run-once", "queue"),
        Task("skips", 20, "skip", "queue"),
        Task("proposes", 20, job="Propose"),
        Task("asks", 20, job="Ask"),
        Task("listens", 0, overlap="queue", on="news"),
        Task("follows", 0, overlap="queue", after="proposes"),
        Task("loops", 20, is_loop=True, job="Wake"),
    ),
    # The runtime is away for two scheduled times, which are caught up.
    faults=(Fault(at=35.0, kind="crash", process=RUNTIME, seconds=45.0),),
    faulty_s=90.0,
    fails=0.0,
    works_s=150.0,
    acts=(
        Act(at=8.0, kind="message", number=0),
        Act(at=9.0, kind="event", number=1),
        Act(at=95.0, kind="event", number=2),
        Act(at=12.0, kind="run", number=3, what="all"),
        Act(at=98.0, kind="message", number=4),
    ),
    delivers=True,
)


@pytest.fixture(scope="module")
def clean() -> History:
    outcome = run(CALM)
    assert outcome.history is not None
    assert not outcome.violations
    return outcome.history


def entries(history: History, name: str = "all") -> list[dict[str, Any]]:
    """Return the fires of a task that succeeded, by their times."""
    (task,) = (task for task in history.rows["tasks"] if task["name"] == name)
    found = (entry for entry in history.rows["ledger"] if entry["task_id"] == task["id"])
    kept = (entry for entry in found if entry["outcome"] == "succeeded" and entry["kind"] != "manual")
    return sorted(kept, key=lambda entry: entry["nominal_us"])


def turn_of(history: History, entry: dict[str, Any]) -> dict[str, Any]:
    (turn,) = (turn for turn in history.rows["turns"] if turn["fire_id"] == entry["fire_id"])
    return turn


def change(**columns: Any) -> Plant:
    """Change the second fire of a task."""
    return lambda history: entries(history)[1].update(columns)


def drop(number: int) -> Plant:
    return lambda history: history.rows["ledger"].remove(entries(history)[number])


def drop_all(history: History) -> None:
    for entry in entries(history):
        history.rows["ledger"].remove(entry)


def move(history: History) -> None:
    entry = entries(history)[1]
    entry.update({name: entry[name] + S for name in ("nominal_us", "due_us", "first_us", "last_us")})


def fold(history: History) -> None:
    """Let one fire of a task that runs all stand for the next one, too."""
    first, second = entries(history)[1:3]
    first.update(last_us=second["last_us"], count=2)
    history.rows["ledger"].remove(second)


def catch_up(history: History) -> None:
    entries(history, "skips")[1].update(caught_up=1)


def swap(history: History) -> None:
    """Let two fires of a task begin in the wrong order."""
    one, other = (turn_of(history, entry) for entry in entries(history)[1:3])
    one["number"], other["number"] = other["number"], one["number"]


def turn(**columns: Any) -> Plant:
    """Change the turn of the second fire of a task."""
    return lambda history: turn_of(history, entries(history)[1]).update(columns)


def lose_turn(outcome: str) -> Plant:
    def plant(history: History) -> None:
        entry = entries(history)[1]
        history.rows["turns"].remove(turn_of(history, entry))
        entry["outcome"] = outcome

    return plant


def early(history: History) -> None:
    found = turn_of(history, entries(history)[1])
    found["started_at_us"] = found["due_at_us"] - 11_000


def said(history: History) -> list[dict[str, Any]]:
    turn_id = turn_of(history, entries(history)[1])["turn_id"]
    return [row for row in history.rows["messages"] if row["turn_id"] == turn_id and row["role"] == "agent"]


def double_message(history: History) -> None:
    history.rows["messages"].append(said(history)[0] | {"position": 77})


def lose_message(history: History) -> None:
    history.rows["messages"].remove(said(history)[0])


def turn_messages_round(history: History) -> None:
    first, second = said(history)
    first["text"], second["text"] = second["text"], first["text"]


def lose_checkpoints(history: History) -> None:
    history.rows["checkpoints"].clear()


def fork(history: History) -> None:
    history.rows["forks"].append({"thread_id": "t", "parent_checkpoint_id": "c", "count": 2})


def overlap(history: History) -> None:
    """Let a turn begin on a thread before the turn before it has ended."""
    thread = turn_of(history, entries(history)[0])["thread_id"]
    told = [event for event in history.rows["told"] if event["thread_id"] == thread]
    end, begin = (next(e for e in told if e["state"] == state) for state in ("SUCCEEDED", "STARTED"))
    later = next(e for e in told if e["state"] == "STARTED" and e is not begin)
    rows = history.rows["told"]
    rows.remove(later)
    rows.insert(rows.index(end), later)


def envelope(folder: str) -> Plant:
    return lambda history: history.envelopes.setdefault(folder, []).append("fire:left:1")


def archive_twice(history: History) -> None:
    history.envelopes["delivered"].append(history.envelopes["delivered"][0])


def lose_envelope(history: History) -> None:
    history.envelopes["delivered"].remove(next(key for key in history.envelopes["delivered"] if "fire" in key))


def forget_start(history: History) -> None:
    wanted = turn_of(history, entries(history)[1])["turn_id"]
    events: Any = history.left.events
    events[:] = [one for one in events if one["event"] != "turn.started" or one["turn_id"] != wanted]


def tell_another_end(history: History) -> None:
    wanted = entries(history)[1]["fire_id"]
    (event,) = (one for one in history.left.events if one["event"] == "fire.settled" and one["fire_id"] == wanted)
    event["outcome"] = "failed"


def quarantine_task(history: History) -> None:
    history.rows["tasks"][0].update(state="quarantined", reason="planted")


def row(name: str, **wanted: Any) -> Callable[[History], dict[str, Any]]:
    """Return a function that finds the first row of a table with the given values."""

    def find(history: History) -> dict[str, Any]:
        return next(one for one in history.rows[name] if wanted.items() <= one.items())

    return find


def alter(name: str, to: dict[str, Any], **wanted: Any) -> Plant:
    return lambda history: row(name, **wanted)(history).update(to)


def repeat(name: str, change: dict[str, Any], **wanted: Any) -> Plant:
    return lambda history: history.rows[name].append(row(name, **wanted)(history) | change)


def remove(name: str, **wanted: Any) -> Plant:
    return lambda history: history.rows[name].remove(row(name, **wanted)(history))


def of_follower(plant: Callable[[History, dict[str, Any]], Any]) -> Plant:
    """Plant something with a trigger of the task that follows."""
    return lambda history: plant(history, next(one for one in history.rows["triggers"] if one["cause"]))


def listened(plant: Callable[[History, dict[str, Any]], Any]) -> Plant:
    """Plant something with a trigger of the task that listens."""
    return lambda history: plant(history, next(one for one in history.rows["triggers"] if not one["cause"]))


def lose_success(history: History) -> None:
    """Let a task have followed a fire that failed."""
    entry = entries(history, "proposes")[1]
    entry.update(outcome="skipped")


def loop_early(history: History) -> None:
    first, second = entries(history, "loops")[:2]
    second["due_us"] = first["ended_us"] + S


def end_loop(history: History) -> None:
    for entry in entries(history, "loops")[1:]:
        history.rows["ledger"].remove(entry)


def forge_record(history: History) -> None:
    records = [one["record"] for one in history.records if "record" in one]
    records[len(records) // 2]["at_us"] += S


def lose_record(history: History) -> None:
    records = [one for one in history.records if "record" in one]
    history.records.remove(records[len(records) // 2])


def lose_trace(history: History) -> None:
    """Let nothing tell of the turn of a fire that was accepted."""
    fire_id = entries(history)[1]["fire_id"]
    for name in ("turns", "told"):
        history.rows[name][:] = [one for one in history.rows[name] if one["fire_id"] != fire_id]


def lose_message_of_person(history: History) -> None:
    said = row("messages", role="author")(history)
    said["text"] = "Say something else"


def write_beyond(history: History) -> None:
    """Let a turn write something that its category does not grant and that nobody approved."""
    turn_id = turn_of(history, entries(history)[1])["turn_id"]
    history.rows["effects"].append({"turn_id": turn_id, "scope": "memory.put", "result_json": "{}"})


def deny(history: History) -> None:
    """Let the author have said otherwise than what stands."""
    asked: Any = history.left.asked
    at = next(at for at, one in enumerate(asked) if one.what == "decision" and one.answered)
    asked[at] = replace(asked[at], said="reject" if asked[at].said == "approve" else "approve")


def cancel_before(history: History) -> None:
    """Let somebody have cancelled a turn that ran before it began."""
    history.withdrawn = [turn_of(history, entries(history)[1])["turn_id"]]


def delivery(history: History) -> dict[str, Any]:
    """Return the row of the delivery of the second fire of a task."""
    fire_id = entries(history)[1]["fire_id"]
    return next(row for row in history.outbox if row["fire_id"] == fire_id and row["target"])


def lose_delivery(history: History) -> None:
    """Let the target never have seen a result."""
    key = delivery(history)["key"]
    history.attempts = [one for one in history.attempts or () if one.key != key]


def fail_delivery(history: History) -> None:
    """Let each attempt of a result have failed, which the outbox has as delivered."""
    key = delivery(history)["key"]
    history.attempts = [replace(one, way="fails") if one.key == key else one for one in history.attempts or ()]


def send_again(history: History) -> None:
    attempts = list(history.attempts or ())
    history.attempts = [*attempts, replace(attempts[0], state="delivered")]


PLANTS: dict[str, tuple[str, Plant]] = {
    "a fire that never ends": ("S1", change(is_open=1, outcome="running")),
    "a task that was taken out of service": ("S1", quarantine_task),
    "the newest fire is missing": ("S2", drop(-1)),
    "the first fire is missing": ("S2", drop(0)),
    "a fire in the middle is missing": ("S2", drop(1)),
    "a task's whole history is gone": ("S2", drop_all),
    "a scheduled time was moved": ("S2", move),
    "an entry counts times that it does not stand for": ("S2", change(count=2)),
    "a task that runs all ran once for two times": ("S3", fold),
    "a task that skips caught up": ("S3", catch_up),
    "two fires began in the wrong order": ("S4", swap),
    "the ledger says failed, the turn succeeded": ("S5", change(outcome="failed", reason="")),
    "the ledger says skipped, and the turn succeeded": ("S5", change(outcome="skipped")),
    "the ledger says succeeded, the turn failed": ("S5", turn(status="failed")),
    "a failed fire without a turn": ("S5", lose_turn("failed")),
    "a fire that succeeded without a turn": ("S5", lose_turn("succeeded")),
    "an entry names the turn of another": ("S5", change(turn_id="turn-of-another")),
    "a turn of no fire": ("S5", turn(fire_id="task-x@never")),
    "a turn before its time, by 11 milliseconds": ("S6", early),
    "a turn that ended before it began": ("S6", turn(ended_at_us=1)),
    "a fire before its time": ("S6", change(fired_us=1)),
    "a message that stands twice": ("S7", double_message),
    "a message that is lost": ("S7", lose_message),
    "messages in the wrong order": ("S7", turn_messages_round),
    "checkpoints that are lost": ("S7", lose_checkpoints),
    "a checkpoint that two others follow": ("C2", fork),
    "two turns at once on a thread": ("C1", overlap),
    "two turns of one fire": ("I3", lambda history: history.rows["turns"].append(
        turn_of(history, entries(history)[1]) | {"turn_id": "turn-x"})),
    "an envelope that stays claimed": ("S8", envelope("claimed")),
    "an envelope that waits": ("S8", envelope("inbox")),
    "an envelope that was quarantined": ("S8", envelope("quarantine")),
    "an envelope that was delivered twice": ("S8", archive_twice),
    "a turn whose envelope is lost": ("S8", lose_envelope),
    "a fire that failed for the machine's fault": ("S9", change(outcome="failed", reason="disk I/O error")),
    "a turn of whose start no event tells": ("S10", forget_start),
    "an end that the events tell otherwise": ("S10", tell_another_end),
    "a success that no follower was told of": ("S11", lambda h: entries(h, "follows")[0].update(count=0)),
    "a success that a follower was told of twice": ("S11", of_follower(lambda h, one: h.rows["triggers"].append(dict(one)))),
    "a follower of a fire that did not succeed": ("S11", lose_success),
    "a trigger of an event that nothing emitted": ("S11", listened(lambda _h, one: one.update(event_id="made-up"))),
    "an event that was answered and triggered nothing": ("C7", listened(lambda h, one: h.rows["triggers"].remove(one))),
    "a webhook that triggered its task twice": ("I9", listened(lambda h, one: h.rows["triggers"].append(dict(one)))),
    "an event that triggered twice": ("C7", listened(lambda h, one: h.rows["triggers"].append(dict(one)))),
    "a trigger without an entry": ("C7", listened(lambda _h, one: one.update(entry_id=987_654))),
    "a message that was answered and is lost": ("C7", lose_message_of_person),
    "a message that was taken twice": ("C7", repeat("messages", {"position": 99}, role="author")),
    "a run that was answered and is lost": ("C7", alter("ledger", {"request_id": ""}, request_id="run-3")),
    "a question that still waits": ("S12", alter("approved", {"status": "pending"})),
    "a question that expired early": ("S12", alter("approved", {"decision": "expired", "resolved_at_us": 1, "expires_at_us": 2})),
    "a decision that its author did not make": ("S12", deny),
    "a decision that stands otherwise than it was told": ("C10", deny),
    "a call outside the category that asked nobody": ("S12", remove("approved", decision="reject")),
    "an approved call that was not done": ("S12", remove("effects", scope="page.propose")),
    "an approved call that was done twice": ("C4", repeat("candidates", {"candidate_id": "c-twice"})),
    "a proposal that no call made": ("C4", remove("effects", scope="summary.propose")),
    "a write that nobody granted": ("C5", write_beyond),
    "a rejected fire whose author said yes": ("S9", lambda h: entries(h)[1].update(outcome="rejected")),
    "a loop that did not wait for its pause": ("S13", loop_early),
    "a loop that stopped": ("S13", end_loop),
    "a record that was changed": ("S14", forge_record),
    "a record that is lost": ("S14", lose_record),
    "a result that was never sent": ("S16", lose_delivery),
    "a result whose attempts all failed": ("S18", fail_delivery),
    "a skipped time that was never sent": ("S16", lambda h: h.rows["ledger"].append(
        entries(h)[1] | {"fire_id": "", "outcome": "skipped", "reason": "missed"})),
    "a delivery that was sent after its record": ("S17", send_again),
    "a delivery that still waits": ("S18", lambda h: delivery(h).update(state="waiting", next_us=7)),
    "a delivery that was given up": ("S18", lambda h: delivery(h).update(state="given up")),
    "a delivery that the outbox forgot": ("S18", lambda h: h.outbox.remove(delivery(h))),
    "a turn that ran though it was cancelled before": ("S15", cancel_before),
    "a turn that never ended": ("C8", turn(status="running")),
    "an accepted fire without a turn": ("C3", lose_trace),
    "an event of a turn that no runner took in": ("C8", alter("told", {"taken": 0})),
    "a message kept back for nothing": ("C8", lambda h: h.rows["kept"].append({"key": "message:m:1", "thread_id": "t"})),
    "a request kept for nothing": ("C8", lambda h: h.rows["unsent"].append({"entry_id": 7})),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTS)
def test_a_planted_violation_is_reported(clean: History, what: str) -> None:
    rule, plant = PLANTS[what]
    planted = copy.deepcopy(clean)
    plant(planted)
    assert rule in {found.invariant for found in check(planted)}


def test_each_rule_has_a_plant() -> None:
    assert {rule.__name__.split("_")[1].upper() for rule in RULES} <= {rule for rule, _ in PLANTS.values()}


def test_the_calm_run_has_what_the_plants_need(clean: History) -> None:
    definitions = [json.loads(task["definition"]) for task in clean.rows["tasks"]]
    assert {each["catch_up"] for each in definitions} == {"run-all", "run-once", "skip"}
    assert any(entry["caught_up"] for entry in clean.rows["ledger"])
    assert all(len(entries(clean, name)) > 2 for name in ("all", "skips"))
    assert {one.way for one in clean.attempts or ()} == {*WAYS}
