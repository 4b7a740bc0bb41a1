"""The cost of work on a shared database, in statements and in transactions that write and therefore sync.

The numbers are ratchets: lower them after work became cheaper, and never raise them. The server runs for this module
alone, and logs each statement. BEGIN and COMMIT count as statements, because each is a round trip.
"""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from tests.integration.cluster.shared import Cluster
from tests.support import postgres
from turnkeeper.clock import SystemClock
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.storage.database import make_schemas
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire

CLOCK = SystemClock()
IDLE_S, TURNS, FIRES = 8.0, 10, 300
OWN = "measure"  # application name of the connection that measures, whose statements do not count
LOGGED = {"log_statement": "all", "log_line_prefix": "%a|%p|"}
CATEGORY = """name = "note"
description = "Notes what it is told."
autonomous = true
silent = false
outside = "ask"
[scopes]
tools = ["memory.put"]
writes = []
memory = ["conversation", "channel"]
channels = []
subagents = []
network = []
recurring = false
[limits]
seconds = 300
tool_calls = 50
tokens = 200_000
"""
LOCKS = re.compile(
    r"FOR (NO KEY )?UPDATE|FOR (KEY )?SHARE|pg_(try_)?advisory_xact|\b(INSERT INTO|UPDATE|DELETE FROM|SAVEPOINT)\b"
)
BEAT = re.compile(r"^WITH (forgotten AS\s+\(DELETE FROM runner\.nodes|renewed AS\s+\(UPDATE owners) ")
SUCCEEDED = "SELECT count(*) FROM runner.fires WHERE outcome = 'succeeded'"


class Cost(NamedTuple):
    """Statements and transactions with an id, each of which syncs at its commit.

    The commit of a notification alone syncs nothing, although it has an id.
    """

    statements: float
    synced: float

    def less(self, other: "Cost", times: float = 1.0) -> "Cost":
        return Cost(self.statements - other.statements * times, self.synced - other.synced * times)

    def each(self, count: float) -> "Cost":
        return Cost(round(self.statements / count, 1), round(self.synced / count, 2))

    def is_within(self, most: "Cost") -> bool:
        return self.statements <= most.statements and self.synced <= most.synced


MOST_IDLE = Cost(5, 1.6)  # of a machine with both daemons, each second
MOST_OF_A_TURN = Cost(190, 18.5)  # with its fire and one call of a tool
MOST_OF_A_TURN_OF_TWO = Cost(192, 18.5)  # of a turn if there is a further machine
MOST_OF_A_FIRE = Cost(5.8, 0.08)  # of many that are due at once


class Measured(Cluster):
    """A cluster on a server that logs its statements."""

    def __init__(self, server: postgres.Server) -> None:
        super().__init__(server.create())
        make_schemas(self.url)
        self.sql.execute(f"SET application_name = '{OWN}'".encode())
        self._log, self._before = server.folder / "said", 0
        self._before = len(self.asked())

    def so_far(self) -> Cost:
        """Return the cost of everything since the server started."""
        asked = self.asked()
        alone = sum(one.startswith("SELECT pg_notify(channel") for one in outside_of_transactions(asked))
        return Cost(len(asked), self.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint") - alone)

    def asked(self) -> list[tuple[str, str]]:
        """Return each statement of the daemons, in order, with its session."""
        found = re.findall(
            rf"^(?!{OWN})[^|\n]*\|(\d+)\|LOG:  (?:statement|execute [^:]*): (.*(?:\n\t.*)*)",
            self._log.read_text(),
            re.MULTILINE,
        )
        return [(session, statement) for session, statement in found][self._before :]

    def machine(self, number: int) -> None:
        """Start a machine with both daemons, whose category has one tool: a turn has one round of tools."""
        home = self.home(number)
        (home.categories / "note.toml").write_text(CATEGORY)
        self.start(home)
        self.start_runtime(home)
        self.until(lambda: all(is_serving(home.socket(name)) for name in ("task-runner", "agent-runtime")))

    def ask(self, request: Any) -> None:
        """Send a request to the runner of the first machine."""
        caller = Caller(self.home(1))
        getattr(caller, type(request).__name__.removesuffix("Request"))(request)
        caller.close()

    def idle(self) -> Cost:
        """Return the cost of a second without work."""
        before, begun = self.so_far(), CLOCK.monotonic()
        self.until(lambda: CLOCK.monotonic() - begun >= IDLE_S)
        return self.so_far().less(before).each(CLOCK.monotonic() - begun)

    def turn(self, idle: Cost, run: str) -> Cost:
        """Return the cost of a turn with its fire, without the cost of the time that it takes."""
        done = self.value(SUCCEEDED)
        before, begun = self.so_far(), CLOCK.monotonic()
        for number in range(1, TURNS + 1):
            self.ask(wire.RunTaskRequest(name="first", request_id=f"{run}-{number}"))
            self.until(lambda: self.value(SUCCEEDED) == done + number)  # noqa: B023  it is called at once
        return self.so_far().less(before).less(idle, CLOCK.monotonic() - begun).each(TURNS)


def outside_of_transactions(asked: list[tuple[str, str]]) -> list[str]:
    """Return the statements that commit by themselves."""
    found, inside = list[str](), set[str]()
    for session, statement in asked:
        if statement.startswith("BEGIN"):
            inside.add(session)
        elif statement.startswith(("COMMIT", "ROLLBACK")) and "TO " not in statement:
            inside.discard(session)
        elif session not in inside:
            found.append(statement)
    return found


def transactions_of_reads(asked: list[tuple[str, str]]) -> list[list[str]]:
    """Return the transactions that only read and lock nothing."""
    found, inside = list[list[str]](), dict[str, list[str]]()
    for session, statement in asked:
        if statement.startswith("BEGIN"):
            inside[session] = []
        elif statement.startswith(("COMMIT", "ROLLBACK")) and "TO " not in statement:
            found.append(inside.pop(session, []))
        elif session in inside:
            inside[session].append(statement)
    return [each for each in found if each and not any(LOCKS.search(one) or "pg_notify" in one for one in each)]


@pytest.fixture
def measured(postgres_server: postgres.Server | None) -> Iterator[Measured]:
    if postgres_server is None:
        pytest.skip("the cost of a server's database: --database postgres")
    binaries = postgres.find_binaries()
    assert binaries
    server = postgres.Server(binaries, LOGGED)
    made = Measured(server)
    yield made
    made.close()
    server.stop()


@pytest.mark.process
def test_an_idle_machine_a_turn_and_a_further_machine_cost_no_more_than_before(measured: Measured) -> None:
    measured.machine(1)
    fields: dict[str, Any] = {
        "category": "note",
        "channel": "general",
        "prompt": "remember: the pump is new",
        "every": "9h",
    }
    spec = wire.TaskSpec(name="first", **fields)
    measured.ask(wire.CreateTaskRequest(spec=spec))
    measured.turn(Cost(0, 0), "warm")
    before = len(measured.asked())
    idle = measured.idle()
    alone = measured.turn(idle, "alone")
    needless = transactions_of_reads(measured.asked()[before:])
    assert len(needless) < TURNS, "no turn and no look has a transaction of reads"
    measured.machine(2)
    idle_of_two = measured.idle()
    of_two = measured.turn(idle_of_two, "beside-another")
    calls = "SELECT count(*) FROM runtime.messages WHERE tool_calls_json <> ''"
    assert measured.value(calls) == 3 * TURNS, "each turn has one round of tools"
    reads = outside_of_transactions(measured.asked())
    assert reads
    beats = [one for one in reads if BEAT.match(one)]
    assert beats, "a beat is one statement"
    told = [one for _, one in measured.asked() if "pg_notify" in one]
    assert told, "machines tell each other of work"
    assert not [one for one in told if one not in reads], "no commit of a write notifies"
    others = [one for one in reads if LOCKS.search(one) and one not in beats]
    assert not others, "a read takes no lock"
    assert idle.is_within(MOST_IDLE), idle
    assert alone.is_within(MOST_OF_A_TURN), alone
    assert of_two.is_within(MOST_OF_A_TURN_OF_TWO), of_two


@pytest.mark.process
def test_a_fire_of_many_costs_no_more_than_before(measured: Measured) -> None:
    measured.start(home := measured.home(1))
    measured.until(lambda: is_serving(home.socket("task-runner")))
    due = CLOCK.now().replace(microsecond=0) + timedelta(seconds=9)
    fields: dict[str, Any] = {
        "category": "loop",
        "channel": "general",
        "prompt": "p",
        "grace": "1h",
        "at": rfc3339(due),
    }
    specs = [wire.TaskSpec(name=f"task-{number}", **fields) for number in range(FIRES)]
    measured.ask(wire.ApplyTasksRequest(specs=specs))
    before = measured.so_far()
    assert measured.value("SELECT count(*) FROM runtime.envelopes") == 0, "declaring took too long"
    measured.until(lambda: measured.value("SELECT count(*) FROM runtime.envelopes") == FIRES)
    fire = measured.so_far().less(before).each(FIRES)
    assert fire.is_within(MOST_OF_A_FIRE), fire
