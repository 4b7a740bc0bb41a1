"""The checker of what a run leaves: the rules for any machines, and those for schedules, turns, envelopes and ends.

The rules of :mod:`tests.integration.cluster.checking` are held against the files of one home, as its queries run on
SQLite too. These are added:

    S1  daemons end only if a fault ends them; whatever is asked is answered; everything comes to its end
    S2  each scheduled time, from the first one to the pause, is a time of the schedule and stands in one entry
    S3  each entry follows its task's policies for missed times
    S4  fires of one task begin in the order of their times
    S5  the ledger and the turns tell the same of each fire
    S6  nothing begins before it is due, or ends before it begins
    S7  each turn that succeeded has its messages once, in their order, and its checkpoints
    S8  no envelope is claimed, waiting or quarantined; each turn of a fire has one envelope in delivered/
    S9  a fire fails only for a reason that its graph gave
    S11 each success of a task triggers each task that follows it, once; each trigger has its event or its success
    S12 each question is decided as its author was told, or expired after its time; what was approved was done, once
    S14 the chains of records verify: none was changed, left out or added
    S13 a loop has one fire at a time, waits for its pause after each turn, and goes on to the end
    S15 a turn that was cancelled before it began says nothing
    S10 the event log tells of each turn's start, and of each fire's end, what the stores tell
    S16 the target of deliveries takes the result of each fire, and skipped times, at least once
    S17 no delivery is sent after the outbox recorded it as delivered
    S18 the outbox has no open delivery, and the target took whatever it has as delivered
"""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_runtime.model.approval import EXPIRED
from agent_runtime.model.decide import MOST_TRIES
from examples.demo.history import Violation
from task_runner.planner.self_paced import DEFAULT_DELAY
from tests.integration.cluster import checking as cluster
from tests.simulation.delivering import TARGET
from turnkeeper.config.home import Home
from turnkeeper.constellation.audit import records, verify
from turnkeeper.constellation.delivery.follow import KIND_OF, NEVER_BEGAN, UNSENT
from turnkeeper.constellation.delivery.outbox import DELIVERED, WAITING, delivery_key
from turnkeeper.times import from_us, rfc3339

Record = dict[str, Any]
_US = 1_000_000
GIVEN_UP = f"was tried {MOST_TRIES} times and never finished"
_ELSEWHERE = {"owned", "left"}  # tables that only machines with one database have
_QUERIES = {
    **{name: query for name, query in cluster.QUERIES.items() if name not in _ELSEWHERE},
    "forks": cluster.QUERIES["forks"].replace("runtime.", "saved.").replace("count(*) FROM", "count(*) AS count FROM"),
    "tasks": "SELECT id, name, state, reason, definition, cursor_us, created_us FROM runner.tasks",
    "ledger": f"{cluster.QUERIES['ledger'].partition(' FROM ')[0]}, policy, started_us, is_open"
    " FROM runner.fires ORDER BY entry_id",
    "triggers": "SELECT entry_id, event, event_id, task_id, cause FROM runner.triggers",
    "approved": "SELECT turn_id, interrupt_id, decision, status, tool, expires_at_us, resolved_at_us"
    " FROM runtime.interrupts ORDER BY number",
    "turns": "SELECT turn_id, number, fire_id, attempt, thread_id, status, category, grant_json, trigger, error, tries,"
    " started_at_us, ended_at_us, nominal_at_us, due_at_us FROM runtime.turns ORDER BY number",
    "messages": "SELECT turn_id, position, role, text, tool_call_id, tool_calls_json FROM runtime.messages"
    " ORDER BY turn_id, position",
    "checkpoints": "SELECT thread_id, count(*) AS count FROM saved.checkpoints GROUP BY thread_id",
}
_GAVE_UP = frozenset({"skipped", "coalesced", "cancelled", "pruned"})
_WELL = {"succeeded", "silent"}
_STATUS = {"succeeded": _WELL, "rejected": _WELL, "failed": {"failed"}, "cancelled": {"cancelled"}}
_SAID_NO = frozenset({"reject", EXPIRED})
_RESUMES_US = 100 * _US  # the longest time until a loop wakes after the processes have restarted
_FOLDERS = ("inbox", "claimed", "delivered", "quarantine")


@dataclass(kw_only=True)
class History:
    """A simulated run in retrospect: its rows, its events, and what was planned for it.

    Attributes:
        left: rows and events, as the rules for any machines read them.
        every_s: by the names of tasks: the seconds between two scheduled times.
        paused_us: when the tasks were paused; each ran until then.
        back_us: by how much the wall clock was set back, in all.
        is_stepped: True if the wall clock was set at all.
        reasons: the errors that the graph gives.
        envelopes: by folder: the key in each envelope.
        follows: by the names of tasks: the task that each follows.
        listens: the tasks that listen for events of programs.
        loops: by the names of loops: the seconds that each waits after a turn.
        withdrawn: the turns that were cancelled before they began.
        deaths: how often the runtime died. A turn that meets five deaths is given up.
        attempts: each attempt of a delivery that reached its target; None if nothing is delivered.
        outbox: the rows of the outbox.
        records: the chained and signed records of both stores, as `turnkeeper audit export` prints them.
    """

    left: cluster.Left
    every_s: dict[str, int]
    paused_us: int
    back_us: int = 0
    is_stepped: bool = False
    reasons: tuple[str, ...] = ()
    envelopes: dict[str, list[str]] = field(default_factory=dict)
    follows: dict[str, str] = field(default_factory=dict)
    listens: frozenset[str] = frozenset()
    loops: dict[str, int] = field(default_factory=dict)
    withdrawn: Sequence[str] = ()
    deaths: int = 0
    records: list[Record] = field(default_factory=list)
    attempts: Sequence[Any] | None = None
    outbox: list[Record] = field(default_factory=list)

    @property
    def rows(self) -> Any:
        return self.left.rows


def read(
    home: Home, every_s: dict[str, int], events: Sequence[Record], asked: Sequence[cluster.Asked], **known: Any
) -> History:
    """Read the files of a home. `events` are those of both logs, in the order in which they were written."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        files = {"runner": home.schedules_db, "runtime": home.agent_db, "saved": home.checkpoints_db}
        for name, path in files.items():
            connection.execute(f"ATTACH ? AS {name}", (str(path),))
        rows = {name: [dict(row) for row in connection.execute(query)] for name, query in _QUERIES.items()}
    envelopes = {folder: _keys(home.inbox("agent0") / folder) for folder in _FOLDERS}
    rows |= {"owned": [], "left": []}
    left, deliveries = cluster.Left(rows=rows, events=events, every_s=every_s, asked=asked), list[Record]()
    if known.get("attempts") is not None:
        with closing(sqlite3.connect(home.root / "state" / "delivery.db")) as connection:
            connection.row_factory = sqlite3.Row
            deliveries = [dict(row) for row in connection.execute("SELECT * FROM deliveries ORDER BY number")]
    return History(
        left=left, every_s=every_s, envelopes=envelopes, records=list(records.export(home)), outbox=deliveries, **known
    )


def _keys(folder: Path) -> list[str]:
    """Return the idempotency key of each envelope in a folder, or the name of a file that is none."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        try:
            found.append(str(json.loads(path.read_bytes())["idempotency_key"]))
        except (ValueError, KeyError, TypeError):
            found.append(path.name)
    return found


def check(history: History) -> list[Violation]:
    """Return what was broken; an empty list is a clean bill."""
    found = cluster.violations(history.left)
    if history.is_stepped:  # S6 knows by how much the clock was set back
        found = [one for one in found if not (one.invariant == "I6" and "due" in one.what)]
    # Cancels of the cluster's rules are measured by the clock, between processes that are there.
    found = [one for one in found if not (one.invariant == "C10" and "was cancelled, and" in one.what)]
    asked = {row["turn_id"] for row in history.rows["approved"]}
    caught_up = [entry for entry in history.rows["ledger"] if entry["caught_up"]]
    # The rule reads the times of one attempt, on one clock, of turns that never wait for their author: those free a place.
    if history.is_stepped or any(entry["attempt"] > 1 or entry["turn_id"] in asked for entry in caught_up):
        found = [one for one in found if one.invariant != "C11"]
    for rule in RULES:
        found += [Violation(invariant=rule.__name__.split("_")[1].upper(), what=what) for what in rule(history)]
    return found


def _scheduled(history: History, task: Record) -> list[Record]:
    """Return the entries that stand for times of a task's schedule, in the order of these times."""
    found = (entry for entry in history.rows["ledger"] if entry["task_id"] == task["id"])
    kept = (entry for entry in found if entry["kind"] == "scheduled" and entry["outcome"] != "coalesced")
    return sorted(kept, key=lambda entry: entry["first_us"])


def _s1_everything_ends(history: History) -> Iterator[str]:
    for entry in history.rows["ledger"]:
        if entry["is_open"]:
            yield f"{entry['fire_id']} is still {entry['outcome']}: {entry['reason']}"
    for task in history.rows["tasks"]:
        if task["state"] != "paused":
            yield f"{task['name']} is {task['state']}: {task['reason']}"


def _s2_each_time_once(history: History) -> Iterator[str]:
    for task in (one for one in history.rows["tasks"] if one["name"] in history.every_s):
        step_us, entries = history.every_s[task["name"]] * _US, _scheduled(history, task)
        late_us = history.paused_us - step_us - 5 * _US  # the newest time that is surely decided
        if not entries:
            yield from [f"{task['name']} has no entry"] if task["created_us"] < late_us else []
            continue
        first = entries[0]["first_us"]
        if not 0 < first - task["created_us"] <= step_us:
            yield f"{task['name']}: its first time is {first}, its creation {task['created_us']}"
        for entry in entries:
            times = (entry["first_us"], entry["nominal_us"], entry["last_us"])
            if any((time - first) % step_us for time in times) or list(times) != sorted(times):
                yield f"{task['name']}: {entry['entry_id']} stands for {times}, which its schedule does not have"
            if entry["count"] != (entry["last_us"] - entry["first_us"]) // step_us + 1:
                yield f"{task['name']}: {entry['entry_id']} counts {entry['count']} times"
        for before, after in pairwise(entries):
            if after["first_us"] - before["last_us"] != step_us:
                yield f"{task['name']}: after {before['last_us']} comes {after['first_us']}"
        # While a turn ran at the pause, fires that waited for it were withdrawn, with their times.
        if entries[-1]["last_us"] <= late_us and (entries[-1]["ended_us"] or 0) < history.paused_us:
            yield f"{task['name']}: its last time is {(history.paused_us - entries[-1]['last_us']) // _US} s ago"


def _s3_policies_are_kept(history: History) -> Iterator[str]:
    definitions = {task["id"]: json.loads(task["definition"]) for task in history.rows["tasks"]}
    for entry in history.rows["ledger"]:
        definition = definitions.get(entry["task_id"], {})
        policy, queues = definition.get("catch_up"), definition.get("overlap") == "queue"
        if entry["kind"] != "scheduled" or entry["outcome"] == "coalesced":
            continue
        if policy == "run-all" and entry["count"] != 1 and entry["outcome"] not in _GAVE_UP:
            yield f"{entry['fire_id']} stands for {entry['count']} times of a task that runs all"
        # With another policy of overlap, a waiting fire stands for the times that come meanwhile.
        if policy == "skip" and queues and entry["caught_up"] and entry["started_us"]:
            yield f"{entry['fire_id']} was caught up of a task that skips"


def _s4_in_order(history: History) -> Iterator[str]:
    numbers = {(turn["fire_id"], turn["attempt"]): turn["number"] for turn in history.rows["turns"]}
    for task in history.rows["tasks"]:
        order = [(entry, numbers.get((entry["fire_id"], 1))) for entry in _scheduled(history, task)]
        begun = [(entry, number) for entry, number in order if number is not None]
        for (before, first), (after, second) in pairwise(begun):
            if second < first:
                yield f"{after['fire_id']} began before {before['fire_id']}"


def _s5_ledger_and_turns_agree(history: History) -> Iterator[str]:
    turns = {(turn["fire_id"], turn["attempt"]): turn for turn in history.rows["turns"] if turn["fire_id"]}
    for entry in history.rows["ledger"]:
        turn = turns.get((entry["fire_id"], entry["attempt"]))
        wanted = _STATUS.get(entry["outcome"], set())
        if turn is None:
            if entry["outcome"] in {"succeeded", "failed"}:
                yield f"{entry['fire_id']} {entry['outcome']} without a turn"
        elif turn["status"] not in wanted and entry["outcome"] not in _GAVE_UP:
            yield f"{entry['fire_id']} is {entry['outcome']}, its turn {turn['status']}"
        elif turn["status"] == "succeeded" and entry["outcome"] in _GAVE_UP:
            yield f"{entry['fire_id']} is {entry['outcome']}, and its turn succeeded"
        elif entry["turn_id"] not in {"", turn["turn_id"]}:
            yield f"{entry['fire_id']} names {entry['turn_id']}, its turn is {turn['turn_id']}"
    known = {entry["fire_id"] for entry in history.rows["ledger"]}
    yield from (
        f"{turn['turn_id']} is of no fire of the ledger" for (fire, _), turn in turns.items() if fire not in known
    )


def _s6_not_before_its_time(history: History) -> Iterator[str]:
    back = history.back_us
    for turn in history.rows["turns"]:
        if turn["due_at_us"] is not None and turn["started_at_us"] + back < turn["due_at_us"]:
            yield f"{turn['turn_id']} began {turn['due_at_us'] - turn['started_at_us']} us before it was due"
        if turn["ended_at_us"] is not None and turn["ended_at_us"] + back < turn["started_at_us"]:
            yield f"{turn['turn_id']} ended before it began"
    for entry in history.rows["ledger"]:
        for earlier, later in pairwise(["due_us", "fired_us", "ended_us"]):
            if None not in (entry[earlier], entry[later]) and entry[later] + back < entry[earlier]:
                yield f"{entry['fire_id']}: {later} is before {earlier}"


def _s7_messages_and_checkpoints(history: History) -> Iterator[str]:
    said: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in history.rows["messages"]:
        said[row["turn_id"]].append((row["role"], row["text"]))
    saved = {row["thread_id"]: row["count"] for row in history.rows["checkpoints"]}
    for turn in history.rows["turns"]:
        if turn["status"] != "succeeded":
            continue
        texts = [text for role, text in said[turn["turn_id"]] if role == "agent"]
        if texts != ["thought", "answered"]:
            yield f"{turn['turn_id']} succeeded with the messages {said[turn['turn_id']]}"
        if not saved.get(turn["thread_id"]):
            yield f"{turn['turn_id']} succeeded, and {turn['thread_id']} has no checkpoint"


def _s8_envelopes(history: History) -> Iterator[str]:
    turns = {turn["turn_id"] for turn in history.rows["turns"] if _is_given_up(history, turn)}
    given_up = {row["key"] for row in history.rows["keys"] if row["turn_id"] in turns}
    for folder in ("inbox", "claimed", "quarantine"):
        expected = given_up if folder == "quarantine" else set[str]()
        yield from (f"{folder}/ holds {key}" for key in history.envelopes.get(folder, ()) if key not in expected)
    archived = Counter(history.envelopes.get("delivered", ()))
    yield from (f"delivered/ holds {key} {count} times" for key, count in archived.items() if count > 1)
    for turn in history.rows["turns"]:
        if turn["fire_id"] and not _is_given_up(history, turn) and not any(turn["fire_id"] in key for key in archived):
            yield f"{turn['turn_id']} has no envelope in delivered/"


def _is_given_up(history: History, turn: Record) -> bool:
    """Return whether a turn met as many deaths of its process as the runtime tries it, or failed at its last try."""
    return history.deaths >= MOST_TRIES and turn["status"] == "failed" and turn["tries"] >= MOST_TRIES


def _s9_reasons_of_failures(history: History) -> Iterator[str]:
    refused = {row["turn_id"] for row in history.rows["approved"] if row["decision"] in _SAID_NO}
    reasons = (*history.reasons, *([GIVEN_UP] if history.deaths >= MOST_TRIES else []))
    for entry in history.rows["ledger"]:
        is_told = entry["outcome"] != "failed" or any(why in entry["reason"] for why in reasons)
        if not is_told or (entry["outcome"] == "rejected" and entry["turn_id"] not in refused):
            yield f"{entry['fire_id']} {entry['outcome']}: {entry['reason']}"


def _s10_the_trail_agrees(history: History) -> Iterator[str]:
    started = {event["turn_id"] for event in history.left.events if event["event"] == "turn.started"}
    told = {turn["turn_id"] for turn in history.rows["turns"] if turn["status"] in {"succeeded", "failed"}}
    yield from (f"no event tells of the start of {turn}" for turn in sorted(told - started))
    outcomes = {event["fire_id"]: event["outcome"] for event in history.left.events if event["event"] == "fire.settled"}
    for entry in history.rows["ledger"]:
        outcome = outcomes.get(entry["fire_id"])
        if outcome is not None and outcome != entry["outcome"] and entry["outcome"] in {"succeeded", "failed"}:
            yield f"{entry['fire_id']} is {entry['outcome']}, and the event log says {outcome}"


def _s11_followers_are_triggered(history: History) -> Iterator[str]:
    ids = {task["name"]: task["id"] for task in history.rows["tasks"]}
    by = Counter((row["task_id"], row["cause"]) for row in history.rows["triggers"] if row["cause"])
    for follower, first in history.follows.items():
        ended = [e for e in history.rows["ledger"] if e["task_id"] == ids[first] and e["outcome"] == "succeeded"]
        told = sum(e["count"] for e in history.rows["ledger"] if e["task_id"] == ids[follower] and e["kind"] == "event")
        surely = sum(entry["ended_us"] < history.paused_us for entry in ended)
        if not surely <= told <= len(ended):  # one entry may stand for several events
            yield f"{first} succeeded {len(ended)} times, and triggered {follower} {told} times"
        causes = {cause: count for (task, cause), count in by.items() if task == ids[follower]}
        for cause, count in causes.items():
            if count > 1 or cause not in {entry["fire_id"] for entry in ended}:
                yield f"{cause} triggered {follower} {count} times"
    asked = {one.key for one in history.left.asked if one.what == "event"}
    for row in history.rows["triggers"]:
        if not row["cause"] and row["event_id"] not in asked:
            yield f"{row['task_id']} was triggered by {row['event_id']}, which nothing emitted"


def _s12_questions_are_decided(history: History) -> Iterator[str]:
    said = {one.key: one.said for one in history.left.asked if one.what == "decision"}
    for row in history.rows["approved"]:
        who = f"{row['interrupt_id']} of {row['turn_id']}"
        if row["status"] == "pending":
            yield f"{who} still waits"
        elif row["decision"] == EXPIRED and row["resolved_at_us"] + history.back_us < row["expires_at_us"]:
            yield f"{who} expired before its time"
        elif row["decision"] not in {"", EXPIRED, said.get(row["interrupt_id"])}:
            yield f"{who} stands as {row['decision']}, and its author said {said.get(row['interrupt_id'])}"
    asked = Counter(row["turn_id"] for row in history.rows["approved"])
    called = Counter(
        row["turn_id"] for row in history.rows["messages"] if '"page_propose"' in (row["tool_calls_json"] or "")
    )
    approved = Counter(row["turn_id"] for row in history.rows["approved"] if row["decision"] == "approve")
    done = Counter(row["turn_id"] for row in history.rows["effects"] if row["scope"] == "page.propose")
    for turn in history.rows["turns"]:
        turn_id = turn["turn_id"]
        if turn["status"] == "succeeded" and done[turn_id] != approved[turn_id]:
            yield f"{turn_id} had {approved[turn_id]} approvals, and did {done[turn_id]} of the calls"
        if turn["status"] == "succeeded" and called[turn_id] != asked[turn_id]:
            yield f"{turn_id} made {called[turn_id]} calls outside its category, and asked {asked[turn_id]} times"


def _s13_loops_go_on(history: History) -> Iterator[str]:
    for task in history.rows["tasks"]:
        if (pause_s := history.loops.get(task["name"])) is None:
            continue
        wakes = [entry for entry in history.rows["ledger"] if entry["task_id"] == task["id"]]
        # A fire that was cancelled before its turn began counts, too: the loop waits after it.
        begun = [entry for entry in wakes if entry["started_us"] or entry["outcome"] == "cancelled"]
        for before, after in pairwise(begun):
            if before["ended_us"] is None or after["due_us"] + history.back_us < _wakes_us(before, pause_s):
                yield f"{after['fire_id']} was due before the pause after {before['fire_id']} was over"
        wakes_us = _wakes_us(begun[-1], pause_s) if begun else task["created_us"] + pause_s * _US
        if wakes_us + _RESUMES_US < history.paused_us:
            yield f"{task['name']} was to wake {(history.paused_us - wakes_us) // _US} s ago"


def _wakes_us(entry: Record, pause_s: int) -> int:
    """Return when a loop wakes after a fire: later if its turn was cancelled, as it asked for no other time."""
    pause_us = round(DEFAULT_DELAY.total_seconds() * _US) if entry["outcome"] == "cancelled" else pause_s * _US
    return int(entry["ended_us"] or 0) + pause_us


def _s14_records_verify(history: History) -> Iterable[str]:
    return verify.check(history.records).faults


def _s15_cancelled_before_it_began(history: History) -> Iterator[str]:
    said = {row["turn_id"] for row in history.rows["messages"] if row["role"] == "agent"}
    for turn_id in said.intersection(history.withdrawn):
        yield f"{turn_id} ran, and was cancelled before it began"


def _s16_each_result_is_delivered(history: History) -> Iterator[str]:
    if history.attempts is None:
        return
    taken = {attempt.key for attempt in history.attempts if "takes" in attempt.way}
    ended = {turn["fire_id"] for turn in history.rows["turns"]}
    for entry in history.rows["ledger"]:
        kind, key = KIND_OF.get(entry["outcome"]), ""
        if entry["outcome"] == "skipped" and entry["reason"] in NEVER_BEGAN:
            key = f"{entry['task_id']}:{entry['entry_id']}:{rfc3339(from_us(entry['last_us']))}:skipped"
        elif entry["fire_id"] in ended and kind and (kind != "success" or entry["reason"] not in UNSENT):
            key = f"{entry['fire_id']}:ended"
        if key and delivery_key(key, TARGET) not in taken:
            yield f"{entry['fire_id'] or entry['entry_id']} is {entry['outcome']}, and its target never took {key}"


def _s17_nothing_is_sent_after_its_record(history: History) -> Iterator[str]:
    for attempt in history.attempts or ():
        if attempt.state != WAITING:
            yield f"{attempt.key} was sent, and the outbox had it as {attempt.state or 'unknown'}"


def _s18_the_outbox_tells_what_was_sent(history: History) -> Iterator[str]:
    taken = {attempt.key for attempt in history.attempts or () if "takes" in attempt.way}
    known = {row["key"] for row in history.outbox}
    yield from (f"the target took {key}, which the outbox does not know" for key in sorted(taken - known))
    for row in history.outbox:
        if row["next_us"] is not None or (row["target"] and row["state"] != DELIVERED):
            yield f"the delivery {row['key']} is {row['state']} after {row['tries']} tries: {row['reason']}"
        elif row["target"] and row["key"] not in taken:
            yield f"the outbox has {row['key']} as delivered, and the target never took it"


RULES: Sequence[Callable[[History], Iterable[str]]] = (
    _s1_everything_ends,
    _s2_each_time_once,
    _s3_policies_are_kept,
    _s4_in_order,
    _s5_ledger_and_turns_agree,
    _s6_not_before_its_time,
    _s7_messages_and_checkpoints,
    _s8_envelopes,
    _s9_reasons_of_failures,
    _s10_the_trail_agrees,
    _s11_followers_are_triggered,
    _s12_questions_are_decided,
    _s13_loops_go_on,
    _s14_records_verify,
    _s15_cancelled_before_it_began,
    _s16_each_result_is_delivered,
    _s17_nothing_is_sent_after_its_record,
    _s18_the_outbox_tells_what_was_sent,
)
