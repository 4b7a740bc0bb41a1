"""Holds what several machines left in their database, and in their trails, against what is promised of a cluster.

Beside the invariants of any history (:mod:`examples.demo.history`), each of which holds here over all machines:

    C1  one turn at a time on a thread, by the order of commits; each turn begins once and ends once
    C2  one process for each epoch of a thread; its checkpoints are one line, which nobody else has written into
    C3  each fire that was accepted has one turn, or says why it has none; one that was withdrawn has none
    C4  each call of a tool took effect once
    C5  what a turn wrote was granted to it, or was approved
    C6  each slot that is due stands in the ledger, from the first one up to the task's cursor
    C7  what was asked for and answered happened once; what was not answered, at most once
    C8  nothing is left for anybody to do, or lies where nobody will look
    C9  every task goes on to the end: none stops planning, firing or looping, and none exceeds its `max_fires`
    C10 what an author is told of a decision stands; a cancel is carried out; of a question the author is told once
    C11 caught-up fires of all runners together are as many at once as one runner may have
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from examples.demo.history import History, Outside, Violation, check
from turnkeeper.times import from_us

Record = dict[str, Any]
QUERIES = {
    "tasks": "SELECT id, name, state, definition, cursor_us, created_us FROM runner.tasks",
    "ledger": "SELECT task_id, fire_id, request_id, kind, outcome, reason, covers AS count, attempt, turn_id, caught_up,"
    " entry_id, ended_us, nominal_us, due_us, first_us, last_us, fired_us, accepted_us FROM runner.fires ORDER BY entry_id",
    "triggers": "SELECT entry_id, event, event_id, task_id FROM runner.triggers",
    "turns": "SELECT turn_id, fire_id, attempt, thread_id, status, category, grant_json, trigger, ended_at_us"
    " FROM runtime.turns",
    "keys": "SELECT key, turn_id, fire_id, attempt, became, released FROM runtime.keys",
    "told": "SELECT turn_id, fire_id, attempt, thread_id, state, taken FROM runtime.turn_events ORDER BY sequence",
    "effects": "SELECT turn_id, scope, result_json FROM runtime.effects",
    "candidates": "SELECT turn_id, candidate_id FROM runtime.candidates",
    "approved": "SELECT turn_id, interrupt_id, decision, status, tool FROM runtime.interrupts",
    "messages": "SELECT turn_id, role, text, tool_call_id, tool_calls_json FROM runtime.messages"
    " ORDER BY turn_id, position",
    "cancels": "SELECT turn_id, at_us FROM runtime.cancels",
    "forks": "SELECT thread_id, checkpoint_ns, parent_checkpoint_id, count(*) FROM runtime.checkpoints"
    " WHERE parent_checkpoint_id IS NOT NULL GROUP BY 1, 2, 3 HAVING count(*) > 1",
    "left": "SELECT key, state, reason FROM runtime.envelopes WHERE not_before_us = 0",
    "owned": "SELECT thread_id, owner FROM runtime.threads JOIN runtime.owners USING (owner)"
    " WHERE until_us > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "kept": "SELECT key, thread_id FROM runtime.kept_messages",
    "unsent": "SELECT entry_id FROM runner.outbox WHERE entry_id NOT IN (SELECT entry_id FROM runner.fires"
    " WHERE is_open)",
}
CARRIED_OUT_S = 60.0  # a lease, a stop past it, and a look
ALIVE_S = 15.0
OVER = frozenset({"SUCCEEDED", "SILENT", "FAILED", "CANCELLED"})
AWAKE = frozenset({"STARTED", "RESUMED"})
ASLEEP = frozenset({"INTERRUPTED", "PAUSED"})


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a program asked for.

    Attributes:
        what: `message`, `event`, `run`, `decision` or `cancel`.
        key: the text of a message, or the id of the event, the request, the question or the turn.
        answered: it was told that it is on disk.
        said: what was decided.
    """

    what: str
    key: str
    answered: bool
    said: str = ""


@dataclass(kw_only=True)
class Left:
    """What is left of a run: rows of the tables by the names of `QUERIES`, the trails of all machines, what was asked.

    Attributes:
        every_s: of tasks whose schedule never changed, by their names: the seconds between two slots.
        before: the tasks as they were when they were disabled, undisturbed for a while, and when that was.
        most: of tasks that end by themselves, by their names: how many times they fire.
        at_once: how many caught-up fires may be under way.
        told: what the author was told of questions, each by its event and its id.
    """

    rows: Mapping[str, Sequence[Record]]
    events: Sequence[Record] = ()
    asked: Sequence[Asked] = ()
    every_s: Mapping[str, int] = field(default_factory=dict)
    before: Sequence[Record] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    at_once: int = 4
    told: Sequence[str] = ()


def read(url: str, queries: Mapping[str, str] = QUERIES) -> dict[str, list[Record]]:
    """Return the rows of one state of a cluster's database."""
    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return {name: connection.execute(query.encode()).fetchall() for name, query in queries.items()}


def violations(left: Left) -> list[Violation]:
    """Return what was broken; an empty list is a clean bill."""
    ledger = [_shown(entry) for entry in left.rows["ledger"]]
    hooks = [  # an id that was asked for until it was answered is a webhook's
        {"event_id": one.key, "status": 202 * one.answered, "duplicate": False}
        for one in left.asked
        if one.what == "event"
    ]
    outside = Outside(hooks=hooks)
    rows = {"turns": left.rows["turns"], "triggers": left.rows["triggers"]}
    history = History(events=left.events, ledger=ledger, outside=outside, **rows)
    found = check(history, drained=True)
    for rule in RULES:
        found += [Violation(invariant=rule.__name__.split("_")[1].upper(), what=what) for what in rule(left)]
    return found


def _c1_threads_are_serial(left: Left) -> Iterator[str]:
    running: dict[str, str] = {}
    begun: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for event in left.rows["told"]:
        turn, thread, state = event["turn_id"], event["thread_id"], event["state"]
        other = running.get(thread)
        if state in AWAKE | ASLEEP | OVER and other not in {None, turn}:
            yield f"{turn} was {state} on {thread} while {other} ran"
        if state in AWAKE:
            running[thread] = turn
        elif state in ASLEEP | OVER:
            running.pop(thread, None)
        begun[turn] += state == "STARTED"
        ended[turn] += state in OVER
    yield from (f"{turn} began {count} times" for turn, count in begun.items() if count > 1)
    yield from (f"{turn} ended {count} times" for turn, count in ended.items() if count > 1)
    yield from (f"{turn} began and never ended" for turn, count in begun.items() if count and not ended[turn])


def _c2_epochs_have_one_process(left: Left) -> Iterator[str]:
    by: dict[tuple[str, int], set[int]] = defaultdict(set)
    for event in left.events:
        if event["event"] == "turn.started":
            by[event["thread_id"], event["epoch"]].add(event["pid"])
    yield from (
        f"{thread}: epoch {epoch} had the processes {sorted(p)}" for (thread, epoch), p in by.items() if p - {min(p)}
    )
    for fork in left.rows["forks"]:
        yield f"{fork['thread_id']}: {fork['count']} checkpoints follow {fork['parent_checkpoint_id']}"


def _c3_each_accepted_fire_has_a_turn(left: Left) -> Iterator[str]:
    turns = Counter((turn["fire_id"], turn["attempt"]) for turn in left.rows["turns"])
    without = {(key["fire_id"], key["attempt"]) for key in left.rows["keys"] if key["became"] in {"refused", "held"}}
    without |= {(event["fire_id"], event["attempt"]) for event in left.rows["told"] if event["state"] in OVER}
    for entry in left.rows["ledger"]:
        attempt = entry["fire_id"], entry["attempt"]
        if entry["accepted_us"] is None:
            continue
        given_up = entry["outcome"] in {"skipped", "coalesced"}  # it was withdrawn before anybody began it
        if turns[attempt] > (not given_up) or not (turns[attempt] or given_up or attempt in without):
            yield f"{attempt[0]}#{attempt[1]} is {entry['outcome']} ({entry['reason']}) with {turns[attempt]} turns"


def _c4_each_effect_once(left: Left) -> Iterator[str]:
    proposed = Counter(effect["turn_id"] for effect in left.rows["effects"] if effect["scope"].endswith(".propose"))
    for turn, count in Counter(each["turn_id"] for each in left.rows["candidates"]).items():
        if count != proposed[turn]:
            yield f"{turn} left {count} proposals by {proposed[turn]} calls"
    asked = Counter(row["turn_id"] for row in left.rows["messages"] if row["role"] in {"author", "trigger"})
    yield from (f"{turn} was given its input {count} times" for turn, count in asked.items() if count > 1)
    called: Counter[tuple[str, str]] = Counter()
    answers: Counter[tuple[str, str]] = Counter()
    for row in left.rows["messages"]:
        called.update((row["turn_id"], call["id"]) for call in json.loads(row["tool_calls_json"] or "[]"))
        answers.update([(row["turn_id"], row["tool_call_id"])] if row["tool_call_id"] else [])
    ended_well = {turn["turn_id"] for turn in left.rows["turns"] if turn["status"] == "succeeded"}
    for call in called.keys() | answers.keys():
        counts = called[call], answers[call]
        if max(counts) > 1 or (call[0] in ended_well and counts != (1, 1)):
            yield f"the call {call[1]} of {call[0]} stands {counts[0]} times, its answer {counts[1]} times"


def _c5_nothing_out_of_scope(left: Left) -> Iterator[str]:
    granted = {turn["turn_id"]: set(json.loads(turn["grant_json"])["tools"]) for turn in left.rows["turns"]}
    approved = Counter(each["turn_id"] for each in left.rows["approved"] if each["decision"] in {"approve", "edit"})
    beyond = Counter(
        effect["turn_id"]
        for effect in left.rows["effects"]
        if effect["scope"] not in granted.get(effect["turn_id"], ())
    )
    for turn, count in beyond.items():
        if count > approved[turn]:
            yield f"{turn} wrote {count} times past its grant, with {approved[turn]} approvals"


def _c6_each_slot_is_accounted_for(left: Left) -> Iterator[str]:
    for task in left.rows["tasks"]:
        step_us = left.every_s.get(task["name"], 0) * 1_000_000
        entries = [e for e in left.rows["ledger"] if e["task_id"] == task["id"] and e["kind"] == "scheduled"]
        entries = [entry for entry in entries if entry["outcome"] != "coalesced"]
        if not step_us or not entries:
            continue
        first, last = min(e["first_us"] for e in entries), max(e["last_us"] for e in entries)
        due, covered = (last - first) // step_us + 1, sum(entry["count"] for entry in entries)
        if due != covered:
            yield f"{task['name']}: {due} slots were due, {covered} are accounted for"
        if first - task["created_us"] > step_us:
            yield f"{task['name']}: the first slot that is accounted for is {(first - task['created_us']) / 1e6:.1f} s late"
        if task["cursor_us"] - last >= step_us:
            yield f"{task['name']}: the cursor passed slots after the last one that is accounted for"


def _c7_what_was_asked_happened_once(left: Left) -> Iterator[str]:
    happened = {
        "message": Counter(row["text"] for row in left.rows["messages"] if row["role"] == "author"),
        "event": Counter(row["event_id"] for row in left.rows["triggers"]),
        "cancel": Counter({turn["turn_id"]: 1 for turn in left.rows["turns"]}),
        "run": Counter(row["request_id"] for row in left.rows["ledger"]),
        "decision": Counter(row["interrupt_id"] for row in left.rows["approved"] if row["decision"]),
    }
    entries = {entry["entry_id"] for entry in left.rows["ledger"]}
    lost = [row for row in left.rows["triggers"] if row["entry_id"] not in entries]
    yield from (f"event {row['event_id']} led to no entry of {row['task_id']}" for row in lost)
    for asked in left.asked:
        count = happened[asked.what][asked.key]
        if count > 1 or (asked.answered and not count):
            yield f"{asked.what} {asked.key}, {'' if asked.answered else 'not '}answered, happened {count} times"


def _c8_nothing_is_left(left: Left) -> Iterator[str]:
    yield from (f"{row['key']} is {row['state']} {row['reason']}" for row in left.rows["left"])
    untaken = [event["turn_id"] for event in left.rows["told"] if not event["taken"]]
    yield from (f"no runner took in an event of {turn}" for turn in untaken)
    unended = [turn for turn in left.rows["turns"] if turn["status"] in {"running", "interrupted", "paused"}]
    yield from (f"{turn['turn_id']} is {turn['status']}" for turn in unended)
    yield from (f"{row['owner']} keeps {row['thread_id']}, for which nothing waits" for row in left.rows["owned"])
    yield from (f"{row['key']} is kept back for {row['thread_id']}, whose turns are over" for row in left.rows["kept"])
    yield from (f"the request of entry {row['entry_id']} is kept for nothing" for row in left.rows["unsent"])


def _c9_every_task_goes_on(left: Left) -> Iterator[str]:
    newest: dict[str, int] = defaultdict(int)
    fired: Counter[str] = Counter()
    for entry in left.rows["ledger"]:
        newest[entry["task_id"]] = max(newest[entry["task_id"]], entry["due_us"])
        fired[entry["task_id"]] += entry["fire_id"] is not None and entry["fired_us"] is not None
    for task in left.before:
        most = left.most.get(task["name"])
        wanted = "done" if most is not None and fired[task["id"]] >= most else "active"
        if task["state"] != wanted:
            yield f"{task['name']} was {task['state']}"
        if most is not None and fired[task["id"]] > most:
            yield f"{task['name']} fired {fired[task['id']]} times, and may {most} times"
        every = task["name"] in left.every_s or task["name"] == "loops"
        if every and most is None and (idle_s := (task["at_us"] - newest[task["id"]]) / 1e6) > ALIVE_S:
            yield f"{task['name']} has planned nothing for {idle_s:.0f} s"


def _c10_what_an_author_is_told_stands(left: Left) -> Iterator[str]:
    stands = {row["interrupt_id"]: row["decision"] for row in left.rows["approved"]}
    for asked in left.asked:
        if asked.what == "decision" and asked.answered and asked.said != stands.get(asked.key):
            yield f"{asked.key} was answered as {asked.said}, and stands as {stands.get(asked.key)}"
    turns = {turn["turn_id"]: turn for turn in left.rows["turns"]}
    for row in left.rows["cancels"]:
        turn = turns.get(row["turn_id"])
        late_s = 0.0 if turn is None or turn["ended_at_us"] is None else (turn["ended_at_us"] - row["at_us"]) / 1e6
        if turn is not None and (late_s > CARRIED_OUT_S or (late_s > ALIVE_S and turn["status"] == "succeeded")):
            yield f"{row['turn_id']} was cancelled, and {turn['status']} {late_s:.0f} s later"
    yield from (f"the author was told {count} times: {what}" for what, count in Counter(left.told).items() if count > 1)


def _c11_caught_up_fires_are_bounded(left: Left) -> Iterator[str]:
    late = [entry for entry in left.rows["ledger"] if entry["caught_up"] and entry["accepted_us"] and entry["ended_us"]]
    steps = sorted((at, step) for e in late for at, step in ((e["accepted_us"], 1), (e["ended_us"], -1)))
    under_way = most = 0
    for _, step in steps:
        under_way += step
        most = max(most, under_way)
    if most > left.at_once:
        yield f"{most} caught-up fires were under way at once"


RULES: tuple[Callable[[Left], Iterable[str]], ...] = (
    _c1_threads_are_serial,
    _c2_epochs_have_one_process,
    _c3_each_accepted_fire_has_a_turn,
    _c4_each_effect_once,
    _c5_nothing_out_of_scope,
    _c6_each_slot_is_accounted_for,
    _c7_what_was_asked_happened_once,
    _c8_nothing_is_left,
    _c9_every_task_goes_on,
    _c10_what_an_author_is_told_stands,
    _c11_caught_up_fires_are_bounded,
)


def _shown(entry: Record) -> Record:
    """Return a row of the ledger as `task-runner history` prints it."""
    named = {"nominal_at": "nominal_us", "due_at": "due_us", "fired_at": "fired_us"}
    named |= {"first_nominal_at": "first_us", "last_nominal_at": "last_us"}
    return entry | {"fire_id": entry["fire_id"] or ""} | {name: _iso(entry[column]) for name, column in named.items()}


def _iso(us: int | None) -> str:
    return "" if us is None else from_us(us).isoformat()
