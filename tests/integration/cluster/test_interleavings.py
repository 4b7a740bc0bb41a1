"""Two units that touch one task, stepped against each other: what they leave is what one after the other leaves.

The first unit stops before each of its statements in turn, and before its commit; then the second runs until it is done,
or waits for a lock of the first; then the first goes on. A unit that read something before it had the task's lock, and
writes it afterwards, leaves what no order of the two would.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import datetime, timedelta
from threading import Event
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import insert

import task_runner.store.shared
from agent_runtime.store import schema
from agent_runtime.store.database import open_database
from task_runner.dispatcher import shared
from task_runner.dispatcher.dispatcher import Pace
from task_runner.model.task import TaskState, replace
from task_runner.scheduler import events as happenings
from task_runner.scheduler import firing, planning, pruner
from task_runner.service import changes
from task_runner.service.task_spec import Defaults
from task_runner.store.reading import MIGRATIONS
from task_runner.store.store import Session
from tests.support.clock import START
from tests.support.planning import plan_due
from tests.support.postgres import Server
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.storage.database import Database
from turnkeeper.storage.server.following import Holes
from turnkeeper.storage.server.url import in_schema
from turnkeeper.v1 import schedules_pb2 as wire

NOW = START + timedelta(seconds=125)
DEFAULTS = Defaults(timezone="UTC", grace=timedelta(seconds=10))
SPEC = wire.TaskSpec(
    name="digest",
    category="loop",
    channel="general",
    prompt="p",
    every="60s",
    overlap="queue",
    retries=1,
    on="demo",
    catch_up="skip",
)
TABLES = ("runner.tasks", "runner.revisions", "runner.fires", "runner.outbox", "runner.events", "runner.triggers")
TABLES += ("runner.slots", "runner.stoppages", "runner.audit", "runtime.envelopes", "runtime.turn_events")
# All that units leave, without the numbers of ledger entries, which say only who was first to ask for one.
LEFT = (
    "SELECT to_jsonb(t) - 'tail_entry', (SELECT to_jsonb(f) - 'entry_id' FROM runner.fires f"
    " WHERE f.entry_id = abs(t.tail_entry)) FROM runner.tasks t ORDER BY id",
    "SELECT to_jsonb(f) - 'entry_id' AS fire, (SELECT request FROM runner.outbox o WHERE o.entry_id = f.entry_id),"
    " (SELECT to_jsonb(t) - 'entry_id' FROM runner.triggers t WHERE t.entry_id = f.entry_id)"
    " FROM runner.fires f ORDER BY fire",
    "SELECT revision, definition FROM runner.revisions ORDER BY revision",
    "SELECT name, id FROM runner.events ORDER BY id",
    "SELECT key, envelope, state FROM runtime.envelopes ORDER BY key",
    "SELECT sequence, taken FROM runtime.turn_events ORDER BY sequence",
)
Unit = Callable[[Session], Any]


def claim_and_plan(session: Session) -> Any:
    return firing.fire_due(session, NOW, 16, {}, sent_at=NOW, room=0, reachable=True)


def edit(session: Session) -> Any:
    spec = wire.TaskSpec()
    spec.CopyFrom(SPEC)
    spec.every = "90s"
    return changes.update(session, "digest", spec, DEFAULTS, NOW)


def stopped(state: TaskState) -> Unit:
    return lambda session: changes.stop(session, "digest", state, "", NOW)


def happened(session: Session) -> Any:
    event = happenings.read_emitted(wire.EmitEventRequest(name="demo", event_id="one"), NOW, "")
    return happenings.emit(session, event, NOW)


def plan_what_was_left(session: Session) -> Any:
    return planning.plan_tasks(session, session.fires.tasks_under_way(), NOW)


UNITS: dict[str, Unit] = {
    "plan": claim_and_plan,
    "plan what was left": plan_what_was_left,
    "hand over": lambda session: shared.hand_over(session, now=NOW, pace=Pace()),
    "take": lambda session: shared.take(session, NOW),
    "edit": edit,
    "pause": stopped(TaskState.PAUSED),
    "delete": stopped(TaskState.DELETED),
    "run now": lambda session: changes.run_now(session, "digest", "asked", NOW),
    "event": happened,
    "prune": lambda session: pruner.prune_batch(session, NOW, 0),
    "withdraw": lambda session: shared.withdraw(session, NOW),
}

CLAIMS = {"plan", "hand over", "take", "prune", "withdraw"}


class Gate:
    """Lets a session go on until it has come to a certain step."""

    def __init__(self) -> None:
        self.stops_at, self._steps = -1, 0
        self.reached, self.goes_on = Event(), Event()

    def arm(self, stops_at: int) -> None:
        self.stops_at, self._steps = stops_at, 0
        self.reached, self.goes_on = Event(), Event()

    def step(self) -> None:
        if self._steps == self.stops_at:
            self.reached.set()
            self.goes_on.wait(30)
        self._steps += 1


class Party(NamedTuple):
    """A session of the database, its gate, and the server's process for it."""

    database: Database
    gate: Any
    pid: int

    def begin(self, unit: Unit) -> "Future[Any]":
        def work(connection: Any) -> None:
            unit(Session(connection, lambda: NOW))
            self.gate.step()

        return self.database.submit(work)


def party(place: str, migrations: str = MIGRATIONS, gate: Any = None) -> Party:
    database, gate = Database(place, migrations=migrations), gate or Gate()

    class Stepped(psycopg.Cursor[Any]):
        def execute(self, *given: Any, **how: Any) -> Any:
            gate.step()
            return super().execute(*given, **how)

    def prepare(connection: Any) -> int:
        driver = connection.connection.driver_connection
        driver.cursor_factory = Stepped
        return int(driver.info.backend_pid)

    return Party(database, gate, database.submit(prepare).result())


class Stage:
    """Two sessions of one database, which can be set back to where both begin."""

    def __init__(self, url: str) -> None:
        self.url = url
        open_database(in_schema(url, "runtime")).close()
        place = in_schema(url, "runner")
        self.first, self.second = party(place), party(place)
        self._sql = psycopg.connect(url, autocommit=True)
        self._begin()
        self._sql.execute("CREATE SCHEMA saved")
        for number, table in enumerate(TABLES):
            self._sql.execute(f"CREATE TABLE saved.t{number} AS TABLE {table}".encode())
        copies = (
            f"INSERT INTO {table} OVERRIDING SYSTEM VALUE TABLE saved.t{number}" for number, table in enumerate(TABLES)
        )
        self._back = "; ".join([f"DELETE FROM {table}" for table in TABLES] + list(copies))

    def _begin(self) -> None:
        """A fire runs, and has told of its end; the next one is committed, and a third is due."""

        def at(offset_s: float, work: Callable[[Session, datetime], Any]) -> None:
            then = START + timedelta(seconds=offset_s)
            self.first.database.submit(lambda c: work(Session(c, lambda: then), then)).result()

        self._sql.execute("INSERT INTO runtime.owners VALUES ('stands-in', 9000000000000000)")
        at(0, lambda session, then: changes.create(session, SPEC, DEFAULTS, then, SeededEntropy(1)))
        at(1, lambda session, then: changes.run_now(session, "digest", "old", then))
        at(1, lambda session, then: shared.hand_over(session, now=then, pace=Pace()))
        self.tell("SUCCEEDED")
        at(2, shared.take)
        at(61, lambda session, then: plan_due(session, then, 9))
        at(61, lambda session, then: shared.hand_over(session, now=then, pace=Pace()))
        at(62, lambda session, then: changes.run_now(session, "digest", "before", then))
        self.tell("STARTED", "FAILED")

    def tell(self, *states: str) -> None:
        """Write what a runtime would of the fire that it has."""
        for state in states:
            self._sql.execute(
                "INSERT INTO runtime.turn_events (turn_id, fire_id, attempt, thread_id, trigger, state, at_us, summary,"
                " error, held_by_json, tokens_in, tokens_out, taken) SELECT 'turn-1', fire_id, attempt, 't', 'fire',"
                " %s, accepted_us, '', '', '', 5, 5, false FROM runner.fires WHERE outcome = 'accepted'",
                (state,),
            )

    def set_back(self) -> None:
        for each in (self.first, self.second):
            each.gate.arm(-1)
        self._sql.execute(self._back.encode())

    def left(self) -> str:
        return "\n".join(str(row) for query in LEFT for row in self._sql.execute(query.encode()))

    def one_by_one(self, *units: Unit) -> str:
        self.set_back()
        for unit in units:
            wait([self.first.begin(unit)])
        return self.left()

    def stepped(self, one: Unit, other: Unit, stops_at: int) -> str | None:
        """Return what is left where `one` stopped there while `other` ran; None where it has fewer steps."""
        self.set_back()
        self.first.gate.arm(stops_at)
        first = self.first.begin(one)
        while not self.first.gate.reached.wait(0.001):
            if first.done():
                return None
        second = self.second.begin(other)
        self.until_waiting(second)
        self.first.gate.goes_on.set()
        assert not wait([first, second], timeout=30).not_done
        return self.left()

    def until_waiting(self, second: "Future[Any]") -> list[str]:
        """Wait until the second session waits for a lock, and return its statement; empty where it is done before."""
        query = "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid = %s"
        while wait([second], timeout=0.002).not_done:
            if found := self._sql.execute(query, (self.second.pid,)).fetchone():
                return list(found)
        return []

    def close(self) -> None:
        for each in (self.first, self.second):
            each.database.close()
        self._sql.close()


@pytest.fixture(scope="module")
def stage(postgres_server: Server | None) -> Iterator[Stage]:
    if postgres_server is None:
        pytest.skip("units of several sessions meet on a server: --database postgres")
    made = Stage(postgres_server.create())
    yield made
    made.close()


@pytest.mark.parametrize("name", UNITS)
def test_each_unit_does_something_by_itself(stage: Stage, name: str) -> None:
    before = stage.one_by_one()
    assert stage.first.begin(UNITS[name]).result(10) is None
    assert stage.left() != before


@pytest.mark.parametrize(("one", "other"), list(itertools.product(UNITS, UNITS)))
def test_any_two_units_leave_what_one_after_the_other_leaves(stage: Stage, one: str, other: str) -> None:
    pair = UNITS[one], UNITS[other]
    allowed = {stage.one_by_one(*pair), stage.one_by_one(*reversed(pair))}
    # What a claim passes over, because somebody else has it, it finds at its next look.
    allowed |= {stage.one_by_one(unit) for unit, beside in zip(pair, (other, one), strict=True) if beside in CLAIMS}
    for stops_at in itertools.count():
        found = stage.stepped(*pair, stops_at)
        if found is None:
            assert stops_at > 2
            return
        assert found in allowed, f"{one} stopped before its statement {stops_at}\n{found}\nis none of\n" + "\n\n".join(
            allowed
        )


def test_an_event_is_taken_in_once(stage: Stage) -> None:
    stage.set_back()
    counts = []
    for each in (stage.first, stage.second):
        each.database.submit(lambda c: counts.append(shared.take(Session(c, lambda: NOW), NOW)[0])).result(10)
    assert counts == [2, 0]


def test_one_runner_prunes_at_a_time_and_another_one_does_not_wait_for_it(stage: Stage) -> None:
    stage.set_back()
    stage.first.gate.arm(3)
    first = stage.first.begin(UNITS["prune"])
    assert stage.first.gate.reached.wait(10)
    before, found = stage.left(), list[pruner.Pruned]()
    stage.second.begin(lambda session: found.append(pruner.prune_batch(session, NOW, 0))).result(10)
    assert (found, stage.left()) == ([(None, 0)], before)
    stage.first.gate.goes_on.set()
    first.result(10)
    assert stage.left() != before


def test_one_runner_withdraws_at_a_time_and_another_one_does_not_wait_for_it(stage: Stage) -> None:
    stage.set_back()
    stage.first.gate.arm(6)  # it has locked the tasks
    first = stage.first.begin(UNITS["withdraw"])
    assert stage.first.gate.reached.wait(10)
    before = stage.left()
    second = stage.second.begin(UNITS["withdraw"])
    assert (stage.until_waiting(second), stage.left()) == ([], before)
    stage.first.gate.goes_on.set()
    first.result(10)
    assert stage.left() != before


def test_events_of_one_task_are_taken_in_by_one_runner_at_a_time(stage: Stage) -> None:
    """While one runner takes in that a turn began, the next event of that turn is for nobody else."""
    stage.set_back()
    stage.first.gate.arm(8)
    first = stage.first.begin(UNITS["take"])
    assert stage.first.gate.reached.wait(10)
    stage.tell("INTERRUPTED")
    begun = stage.second.begin(UNITS["take"])
    begun.result(10)
    taken = [line for line in stage.left().splitlines() if line.endswith("True)")]
    assert len(taken) == 1, "the one of the fire before: the others wait for the first runner"
    stage.first.gate.goes_on.set()
    first.result(10)


CLAIMED: dict[str, Callable[[Session], Sequence[Any]]] = {
    "plan": lambda session: session.tasks.due_tasks(NOW, 9),
    "plan anew": lambda session: session.tasks.due(NOW, 9),
    "hand over": lambda session: session.fires.claim(NOW, 9, caught_up=False),
    "take": lambda session: session.shared.take(9),
}
OF_AN_AUTHOR = (
    "INSERT INTO runtime.turn_events (turn_id, fire_id, attempt, thread_id, trigger, state, at_us, summary, error,"
    " held_by_json, tokens_in, tokens_out, taken) VALUES ('turn-2', '', 0, 't', 'author', 'STARTED', 1, '', '', '', 5, 5,"
    " false)"
)


@pytest.mark.parametrize("name", CLAIMED)
def test_what_one_runner_has_claimed_another_passes_over_and_does_not_wait_for(stage: Stage, name: str) -> None:
    begun: list[Future[Any]] = []
    found: list[int] = []

    def claim(session: Session) -> None:
        found.append(len(CLAIMED[name](session)))
        if not begun:
            begun.append(stage.second.begin(claim))
            assert stage.until_waiting(begun[0]) == []

    stage.set_back()
    stage._sql.execute(OF_AN_AUTHOR.encode())
    stage.first.begin(claim).result(30)
    begun[0].result(30)
    assert found[0] > 0
    assert found[1:] == [0]


@pytest.mark.parametrize("name", ["pause", "delete", "edit"])
def test_an_act_of_an_author_waits_at_the_task_of_which_a_fire_is_handed_over(stage: Stage, name: str) -> None:
    """So it has decided nothing yet that it would have to decide again."""
    begun: list[Future[Any]] = []

    def hand_over(session: Session) -> None:
        assert session.fires.claim(NOW, 9, caught_up=False)
        begun.append(stage.second.begin(UNITS[name]))
        waits_for.extend(stage.until_waiting(begun[0]))

    waits_for: list[str] = []
    stage.set_back()
    stage.first.begin(hand_over).result(30)
    begun[0].result(30)
    assert "FROM tasks" in waits_for[0]


def test_fires_that_are_found_before_their_tasks_are_what_the_lock_leaves_of_them(stage: Stage) -> None:
    """Whoever had the task changed a fire, and it was found before that was committed."""
    begun: list[Future[Any]] = []
    seen: list[str] = []

    def look(session: Session) -> None:
        seen.extend(fire.reason for fire in session.locked(lambda: list(session.fires.by_ids(ids).values())))

    def change(session: Session) -> None:
        (fire,) = session.fires.by_ids(ids).values()
        session.tasks.lock({fire.task_id})
        session.fires.update([replace(fire, reason="changed meanwhile")])
        begun.append(stage.second.begin(look))
        stage.until_waiting(begun[0])

    stage.set_back()
    ids = [row[0] for row in stage._sql.execute("SELECT fire_id FROM runner.fires WHERE outcome = 'accepted'")]
    stage.first.begin(change).result(30)
    begun[0].result(30)
    assert seen == ["changed meanwhile"]


def test_a_fire_that_was_handed_over_since_a_claim_began_to_read_is_not_claimed(stage: Stage) -> None:
    """It is found as it was; then whoever handed it over commits, and only then the claim comes to lock it."""
    found: list[Any] = []
    stage.set_back()
    ids = [row[0] for row in stage._sql.execute("SELECT entry_id FROM runner.fires WHERE ready_us IS NOT NULL")]
    stage._sql.execute("ALTER TABLE runner.outbox RENAME TO kept")
    stage._sql.execute(
        "CREATE VIEW runner.outbox AS SELECT * FROM runner.kept WHERE (SELECT pg_advisory_xact_lock(77)) IS NOT NULL"
    )
    try:
        stage._sql.execute("SELECT pg_advisory_lock(77)")
        claim = stage.second.begin(lambda session: found.extend(session.fires.claim(NOW, 9, caught_up=False)))
        assert stage.until_waiting(claim)
        stage.first.begin(lambda session: session.fires.hand_over(ids, NOW)).result(30)
        stage._sql.execute("SELECT pg_advisory_unlock(77)")
        claim.result(30)
    finally:
        stage._sql.execute("SELECT pg_advisory_unlock_all()")
        stage._sql.execute("DROP VIEW runner.outbox")
        stage._sql.execute("ALTER TABLE runner.kept RENAME TO outbox")
    assert (len(ids), found) == (1, [])


def test_no_more_is_handed_over_than_the_runtimes_may_have_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.set_back()
    waiting = stage._sql.execute("SELECT count(*) FROM runtime.envelopes WHERE state = 'waiting'").fetchall()[0][0]
    handed = []
    for most in (waiting, waiting + 1):
        monkeypatch.setattr(task_runner.store.shared, "MOST_WAITING", most)
        stage.first.begin(lambda session: handed.append(shared.hand_over(session, now=NOW, pace=Pace()))).result(30)
    assert [len(each or ()) for each in handed] == [0, 1]


TWIN = (
    "UPDATE runner.fires SET caught_up = true WHERE ready_us IS NOT NULL",
    """INSERT INTO runner.tasks SELECT (jsonb_populate_record(t, '{"id": "twin", "name": "twin"}')).* FROM runner.tasks t""",
    """INSERT INTO runner.fires OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(f, '{"entry_id": 1000,
    "task_id": "twin", "fire_id": "twin@1", "request_id": "twin"}')).* FROM runner.fires f WHERE ready_us IS NOT NULL""",
    """INSERT INTO runner.outbox SELECT 1000, request FROM runner.outbox
    WHERE entry_id = (SELECT min(entry_id) FROM runner.fires WHERE ready_us IS NOT NULL)""",
)


def test_caught_up_fires_are_handed_over_at_one_pace_by_all_runners(stage: Stage) -> None:
    """Two tasks have one each, and one may be under way: while it is handed over, and behind that."""
    begun: list[Future[Any]] = []
    found: list[int] = []
    pace = Pace(concurrency=1, stagger_s=0.0)

    def hand_over(session: Session) -> None:
        found.append(len(shared.hand_over(session, now=NOW, pace=pace) or ()))
        if not begun:
            begun.append(stage.second.begin(hand_over))
            assert stage.until_waiting(begun[0]) == []

    stage.set_back()
    for statement in TWIN:
        stage._sql.execute(statement.encode())
    stage.first.begin(hand_over).result(30)
    begun[0].result(30)
    stage.second.begin(hand_over).result(30)
    assert found == [1, 0, 0]


def test_what_was_caught_up_before_the_servers_clock_was_set_back_holds_nothing_up(stage: Stage) -> None:
    found: list[int] = []
    stage.set_back()
    stage._sql.execute(TWIN[0].encode())
    for ahead_s in (0.1, 3600.0):
        until = NOW + timedelta(seconds=ahead_s)
        stage.first.begin(lambda session, until=until: session.shared.catch_up_after(until)).result(30)
        hand_over = stage.second.begin(
            lambda session: found.append(len(shared.hand_over(session, now=NOW, pace=Pace()) or ()))
        )
        hand_over.result(30)
    assert found == [0, 1]


def test_what_happens_inside_turns_is_taken_in_by_one_runner_at_a_time(stage: Stage) -> None:
    begun: list[Future[Any]] = []
    counts: list[int] = []

    def take(session: Session) -> None:
        counts.append(shared.take_happened(session, NOW, Holes())[0])
        if not begun:
            begun.append(stage.second.begin(take))
            assert stage.until_waiting(begun[0]) == []

    stage.set_back()
    spec = wire.TaskSpec(name="listens", category="loop", channel="general", prompt="p", on="turn_end")
    stage.first.begin(lambda session: changes.create(session, spec, DEFAULTS, NOW, SeededEntropy(2))).result(30)
    happened_in_turn(stage)
    stage.first.begin(take).result(30)
    begun[0].result(30)
    assert counts == [1, 0]


def test_an_event_behind_a_missing_one_is_taken_in_at_once_and_the_missing_one_later(stage: Stage) -> None:
    """A runtime that stands still within a transaction holds up the events of no other one."""
    holes, counts = Holes(), list[int]()

    def take(session: Session) -> None:
        counts.append(shared.take_happened(session, NOW, holes)[0])

    def known() -> int:
        return stage._sql.execute("SELECT count(*) FROM runner.events WHERE name = 'turn_end'").fetchall()[0][0]

    stage.set_back()
    spec = wire.TaskSpec(name="hears", category="loop", channel="general", prompt="p", on="turn_end", overlap="queue")
    stage.first.begin(lambda session: changes.create(session, spec, DEFAULTS, NOW, SeededEntropy(2))).result(30)
    stage._sql.execute("DELETE FROM runtime.bridged_events")
    stage._sql.execute("DELETE FROM runtime.turns")
    happened_in_turn(stage)
    stage.first.begin(take).result(30)
    with psycopg.connect(stage.url) as stands_still:
        stands_still.execute(BRIDGED)
        stage._sql.execute(BRIDGED)
        stage.first.begin(take).result(30)
        stage.first.begin(take).result(30)
        assert known() == 2
    stage.first.begin(take).result(30)
    stage.first.begin(take).result(30)
    assert counts == [1, 0, 0, 2, 0]
    assert known() == 3


BRIDGED = "INSERT INTO runtime.bridged_events (name, turn_id, at_us, tool, data_json) VALUES ('turn_end', 'turn-9', 1, '', '{}')"


def happened_in_turn(stage: Stage) -> None:
    """Write what a runtime would of a turn's end."""
    blank: dict[type, Any] = {str: "", int: 0, bool: False}
    row = {column.name: blank[column.type.python_type] for column in schema.turns.c if not column.nullable}
    row |= {"turn_id": "turn-9", "status": "succeeded", "trigger": "author"}
    event = {"name": "turn_end", "turn_id": "turn-9", "at_us": 1, "tool": "", "data_json": "{}"}
    database = open_database(in_schema(stage.url, "runtime"))
    database.submit(lambda c: c.execute(insert(schema.turns).values({**row, "number": 9}))).result(30)
    database.submit(lambda c: c.execute(insert(schema.bridged_events).values(event))).result(30)
    database.close()
