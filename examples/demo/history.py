"""Checks the invariants on the history of a run.

A history is the event log of all processes, the runner's ledger and the runtime's turns, each in the form in which
users get them (`logs/events-*.jsonl`, `turnkeeper task history -o json`, `turnkeeper turns list -o json`). The log may
lack the last lines before a crash, and lines for which a full disk had no room (`events.lost`). So the invariants are
checked on the ledger and the turns. Only the log contains the times of sending, and the process and the duration of
each turn. Traffic that left or entered the home is checked if the history contains it.

    I1  no committed fire is lost once everything has drained
    I2  there is no turn without a fire or a message that asked for it
    I3  at most one turn for each (fire, attempt), and one process starts it at most once
    I4  turns on one thread never overlap
    I6  nothing fires early; no scheduled nominal time fires twice
    I7  the cursor passed t if and only if exactly one scheduled entry covers t
    I8  each result of a fire goes to a target once, under one key; everything that counts as delivered was received
    I9  a webhook that was answered 2xx triggered its task, and no webhook's id triggered a task twice
    I10 a call of an MCP server's tool was sent at most once, and once more for each time that its author allowed it
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

Record = dict[str, Any]
CountNominals = Callable[[str, datetime, datetime], int]
"""(task id, first, last) -> the number of the timetable's nominal times in [first, last]."""

SETTLED = frozenset({"succeeded", "rejected", "failed", "cancelled", "skipped", "coalesced", "pruned"})
_COVERS_NOTHING = frozenset({"coalesced"})
_BESIDE = frozenset({"manual", "backfill", "wake", "event"})
_NEVER_RAN = frozenset({"skipped", "coalesced", "pruned", "waiting"})


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Traffic outside the home. None means that this traffic was not watched.

    Attributes:
        received: requests that receivers of deliveries got: `key` and `body`.
        hooks: requests of a webhook's sender: `event_id`, `status`, and `duplicate` of the answer.
        sent: calls that reached MCP servers: `tool`, as models know it, and `args`.
    """

    received: Sequence[Record] | None = None
    hooks: Sequence[Record] = ()
    sent: Sequence[Record] | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """The history of one run.

    Attributes:
        events: records of the event log, oldest first.
        ledger: entries of every task, as `turnkeeper task history -o json` prints them.
        turns: as `turnkeeper turns list -o json` prints them.
        deliveries: as `turnkeeper deliver log -o json` prints them.
        triggers: the event that triggered each entry: `task_id` and `event_id`.
        calls: calls of MCP servers' tools in turns: `turn_id`, `call_id`, `tool`, `args`.
        again: calls that an author let run again: `tool` and `args`.
    """

    events: Sequence[Record]
    ledger: Sequence[Record]
    turns: Sequence[Record]
    deliveries: Sequence[Record] = ()
    triggers: Sequence[Record] = ()
    calls: Sequence[Record] = ()
    again: Sequence[Record] = ()
    outside: Outside = Outside()


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A broken invariant.

    Attributes:
        invariant: the invariant's number, such as `I3`.
        what: the fire, turn or thread, and the fault.
    """

    invariant: str
    what: str


def check(history: History, *, drained: bool, count_nominals: CountNominals | None = None) -> list[Violation]:
    """Return every violation of the invariants in a history.

    Args:
        history: the history to check.
        drained: True if no work is running, so that every open entry is lost.
        count_nominals: the timetables, to compare the coverage with; without it, only gaps and overlaps between
            entries are found.
    """
    found = [*_turns_have_causes(history), *_one_turn_an_attempt(history), *_threads_are_serial(history)]
    found += [*_nothing_early(history), *_nothing_twice(history), *_coverage(history, count_nominals)]
    found += [*_delivered_once(history), *_hooks_trigger_once(history), *_calls_sent_once(history)]
    if drained:
        found += _nothing_lost(history)
    return found


def _nothing_lost(history: History) -> Iterator[Violation]:
    entries = {entry["fire_id"]: entry for entry in history.ledger if entry["fire_id"]}
    for fire_id, entry in entries.items():
        if entry["outcome"] not in SETTLED:
            yield Violation(invariant="I1", what=f"{fire_id} is still {entry['outcome']}")
    for event in history.events:
        if event["event"] == "fire.committed" and event["fire_id"] not in entries:
            yield Violation(invariant="I1", what=f"{event['fire_id']} was committed and is in no ledger")
    turned = {turn["fire_id"] for turn in history.turns}
    for fire_id, entry in entries.items():
        if entry["outcome"] == "succeeded" and entry["reason"] != "delivered" and fire_id not in turned:
            yield Violation(invariant="I1", what=f"{fire_id} succeeded without a turn")


def _turns_have_causes(history: History) -> Iterator[Violation]:
    attempts = {entry["fire_id"]: entry["attempt"] for entry in history.ledger if entry["fire_id"]}
    for turn in history.turns:
        fire_id = turn["fire_id"]
        if fire_id and turn["attempt"] > attempts.get(fire_id, 0):
            yield Violation(invariant="I2", what=f"{turn['turn_id']} ran for {fire_id}#{turn['attempt']}, never sent")


def _one_turn_an_attempt(history: History) -> Iterator[Violation]:
    turns = defaultdict(set)
    for turn in history.turns:
        if turn["fire_id"]:
            turns[turn["fire_id"], turn["attempt"]].add(turn["turn_id"])
    starts: dict[tuple[Any, ...], int] = defaultdict(int)
    for event in history.events:
        if event["event"] == "turn.started" and event["fire_id"]:
            turns[event["fire_id"], event["attempt"]].add(event["turn_id"])
            if event["mode"] == "start":
                starts[event["fire_id"], event["attempt"], event["pid"]] += 1
    for (fire_id, attempt), ids in turns.items():
        if len(ids) > 1:
            yield Violation(invariant="I3", what=f"{fire_id}#{attempt} has {len(ids)} turns")
    for (fire_id, attempt, pid), count in starts.items():
        if count > 1:
            yield Violation(invariant="I3", what=f"process {pid} started {fire_id}#{attempt} {count} times")


def _threads_are_serial(history: History) -> Iterator[Violation]:
    running: dict[str, Record] = {}
    for event in history.events:
        if event["event"] == "turn.started":
            before = running.get(event["thread_id"])
            if before is not None and before["pid"] == event["pid"]:
                both = f"{before['turn_id']} and {event['turn_id']}"
                yield Violation(invariant="I4", what=f"{both} ran at once on {event['thread_id']}")
            running[event["thread_id"]] = event
        elif event["event"] in {"turn.stopped", "turn.trouble", "lease.lost"}:  # its turn there is over
            if running.get(event["thread_id"], event)["pid"] == event["pid"]:
                running.pop(event["thread_id"], None)
        elif event["event"] == "events.lost":  # the log lacks the turns that this process stopped meanwhile
            running = {thread: turn for thread, turn in running.items() if turn["pid"] != event["pid"]}


def _nothing_early(history: History) -> Iterator[Violation]:
    due = {entry["fire_id"]: entry["due_at"] for entry in history.ledger if entry["fire_id"] and entry["due_at"]}
    for entry in history.ledger:
        if entry["fired_at"] and entry["due_at"] and _at(entry["fired_at"]) < _at(entry["due_at"]):
            yield Violation(
                invariant="I6", what=f"{entry['fire_id']} fired at {entry['fired_at']}, due {entry['due_at']}"
            )
    for event in history.events:
        if event["event"] == "fire.sent" and event["fire_id"] in due and _at(event["at"]) < _at(due[event["fire_id"]]):
            yield Violation(invariant="I6", what=f"{event['fire_id']} left at {event['at']}, before it was due")


def _nothing_twice(history: History) -> Iterator[Violation]:
    fired = defaultdict(list)
    for entry in _scheduled(history.ledger):
        if entry["outcome"] not in _NEVER_RAN:
            fired[entry["task_id"], entry["nominal_at"]].append(entry["fire_id"])
    for (task_id, nominal_at), ids in fired.items():
        if len(ids) > 1:
            yield Violation(invariant="I6", what=f"{task_id} fired {len(ids)} times for {nominal_at}")


def _coverage(history: History, count_nominals: CountNominals | None) -> Iterator[Violation]:
    by_task = defaultdict(list)
    for entry in _scheduled(history.ledger):
        if entry["outcome"] not in _COVERS_NOTHING:
            by_task[entry["task_id"]].append(entry)
    for task_id, entries in by_task.items():
        entries.sort(key=lambda entry: _at(entry["first_nominal_at"]))
        for before, after in pairwise(entries):
            if _at(after["first_nominal_at"]) <= _at(before["last_nominal_at"]):
                yield Violation(invariant="I7", what=f"{task_id}: {after['first_nominal_at']} is covered twice")
        if count_nominals is not None:
            first, last = _at(entries[0]["first_nominal_at"]), max(_at(entry["last_nominal_at"]) for entry in entries)
            expected, covered = count_nominals(task_id, first, last), sum(entry["count"] for entry in entries)
            if expected != covered:
                what = f"{task_id}: {covered} nominal times covered, {expected} passed"
                yield Violation(invariant="I7", what=what)


def _delivered_once(history: History) -> Iterator[Violation]:
    by_result = Counter((row["fire_id"], row["kind"], row["target"]) for row in history.deliveries if _is_result(row))
    for (fire_id, kind, target), count in by_result.items():
        if count > 1:
            yield Violation(invariant="I8", what=f"{kind} of {fire_id} goes to {target} {count} times")
    if history.outside.received is None:
        return
    known, bodies = {row["key"]: row for row in history.deliveries}, defaultdict(set)
    for request in history.outside.received:
        bodies[request["key"]].add(request["body"])
    for key in bodies.keys() - known.keys():
        yield Violation(invariant="I8", what=f"{key} was received and is in no outbox")
    for key, row in known.items():
        if len(bodies[key]) > 1:
            yield Violation(invariant="I8", what=f"{key} was received with {len(bodies[key])} contents")
        if row["state"] == "delivered" and not bodies[key]:
            yield Violation(invariant="I8", what=f"{key} counts as delivered and was never received")


def _is_result(row: Record) -> bool:
    return bool(row["fire_id"]) and row["kind"] != "waits"  # a turn may ask several times


def _hooks_trigger_once(history: History) -> Iterator[Violation]:
    triggered = Counter((row["event_id"], row["task_id"]) for row in history.triggers)
    known, asked = {event_id for event_id, _ in triggered}, {hook["event_id"] for hook in history.outside.hooks}
    for (event_id, task_id), count in triggered.items():
        if count > 1 and event_id in asked:
            yield Violation(invariant="I9", what=f"the webhook {event_id} triggered {task_id} {count} times")
    fresh = Counter[str]()
    for hook in history.outside.hooks:
        if 200 <= hook["status"] < 300:
            fresh[hook["event_id"]] += not hook["duplicate"]
            if hook["event_id"] not in known:
                yield Violation(invariant="I9", what=f"the webhook {hook['event_id']} was answered and is lost")
    for event_id, count in fresh.items():
        if count > 1:
            yield Violation(invariant="I9", what=f"the webhook {event_id} was answered as new {count} times")


def _calls_sent_once(history: History) -> Iterator[Violation]:
    if history.outside.sent is None:
        return
    made = {(call["turn_id"], call["call_id"]): _call(call) for call in history.calls}
    allowed = Counter(made.values()) + Counter(map(_call, history.again))
    for call, count in Counter(map(_call, history.outside.sent)).items():
        if count > allowed[call]:
            yield Violation(invariant="I10", what=f"{call} was sent {count} times, and may {allowed[call]} times")


def _call(call: Record) -> str:
    return f"{call['tool']} {json.dumps(call['args'], sort_keys=True)}"


def _scheduled(ledger: Iterable[Record]) -> Iterator[Record]:
    return (entry for entry in ledger if entry["kind"] not in _BESIDE and entry["first_nominal_at"])


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
