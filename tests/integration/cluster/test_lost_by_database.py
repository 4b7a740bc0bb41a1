"""An asynchronous standby that lacks the last commits takes over: each machine says what was lost, and who lost it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from agent_runtime.daemon.cluster.losses import found_loss
from tests.integration.cluster.test_records import NOW, RUNNER, Machine
from tests.support.constellation import Constellation
from tests.support.postgres import Server, Standby, find_binaries
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.audit.records import examine
from turnkeeper.constellation.inspect.losses import findings
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.chain import linked
from turnkeeper.storage.database import make_schemas
from turnkeeper.times import rfc3339

CONNECTIONS = 2  # of a machine
PATIENCE_S = 120.0
END = "SELECT number, hash FROM audit_chains WHERE chain = %s"
NEWEST_BODY = "SELECT body FROM audit_records WHERE chain = %s ORDER BY number DESC LIMIT 1"
FORGE = """WITH new AS (INSERT INTO audit_records (chain, number, at_us, body, content_hash, hash)
    VALUES (%(of)s, %(number)s, %(at_us)s, %(body)s, %(content_hash)s, %(hash)s) RETURNING number, hash)
    UPDATE audit_chains SET (number, hash) = (SELECT number, hash FROM new) WHERE chain = %(of)s"""


class Pair(NamedTuple):
    """Two servers of one database, and its URL, which names both."""

    primary: Server
    standby: Standby
    url: str

    def take_over(self) -> None:
        """Lose the primary, and promote the standby."""
        self.primary.stop()
        self.standby.promote()


@pytest.fixture
def pair(postgres_server: Server | None) -> Iterator[Pair]:
    binaries = find_binaries()
    if postgres_server is None or binaries is None:
        pytest.skip("of servers: --database postgres")
    primary = Server(binaries)
    url = primary.create()
    make_schemas(url)
    standby = Standby(binaries, primary)
    hosts = ",".join(quote(str(one.folder), safe="") for one in (primary, standby))
    name = url.split("@/")[1].split("?")[0]
    yield Pair(primary, standby, f"postgresql://postgres@/{name}?host={hosts}&target_session_attrs=read-write")
    for server in (primary, standby):
        if server.folder.exists():
            server.stop()


@pytest.fixture
def machines(pair: Pair, tmp_path: Path) -> Iterator[list[Machine]]:
    """Two machines, each with three records that it has looked at. The standby has them too, and is then stopped."""
    made = []
    for name in ("cellar", "garage"):
        home = Home(root=tmp_path / name)
        home.create()
        home.config.write_text(f'[store]\nurl = "{pair.url}"\n[node]\nname = "{name}"\n')
        made.append(Machine(pair.url, home, name))
    for machine in made:
        machine.write(1, 2, 3)
    for machine in made:
        assert machine.events() == []
    pair.standby.catch_up(pair.primary)
    pair.standby.pause()
    yield made
    for machine in made:
        machine.close()


def restarted(machines: list[Machine], pair: Pair) -> list[Machine]:
    """Return the machines' processes anew, which know only what their homes hold."""
    for machine in machines:
        machine.close()
    machines[:] = [Machine(pair.url, machine.home, machine.name) for machine in machines]
    return machines


def reconnected(machine: Machine) -> Machine:
    """Return a machine whose process lost its connections, and has others."""
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        while not all(pool.map(has_used, [machine] * CONNECTIONS, [Barrier(CONNECTIONS)] * CONNECTIONS)):
            pass
    return machine


def has_used(machine: Machine, all_begin: Barrier) -> bool:
    """Use one of a machine's connections while others use the other ones. Return False if one of them is lost."""

    def work(connection: Any) -> None:
        all_begin.wait(PATIENCE_S)
        connection.exec_driver_sql("SELECT 1")

    try:
        machine.do(work)
    except (TurnkeeperError, BrokenBarrierError):
        all_begin.abort()
        return False
    return True


def test_what_an_asynchronous_failover_lost_is_said_by_status_the_log_the_alert_and_the_audit(
    pair: Pair, machines: list[Machine]
) -> None:
    machines[0].write(4, 5)
    for machine in machines:
        assert machine.events() == []
    pair.take_over()
    for machine, least in zip(restarted(machines, pair), (2, 1), strict=True):  # the first has written one since
        ((name, loss),) = machine.events()
        assert (name, loss["records"]) == ("database.lost", least)
        assert loss["before"].endswith(" timeline 1")
        assert loss["now"].endswith(" timeline 2")
        ((_, found, _),) = findings(machine.home)
        assert f"the database lost commits between {loss['since']} and {loss['to']}" in found
        (alert,) = machine.home.run.parent.glob("escalate-failed-*-database")
        assert "another server took over" in json.loads(alert.read_bytes())["text"]
        assert machine.events() == [], "said once"
    for machine in machines:
        machine.write(6)
        assert machine.faults() == []
    notes = [note for note in examine(machines[1].home).notes if "lost by the database, whose server changed" in note]
    assert len(notes) == len(machines), "a record of each machine"


def test_a_process_that_runs_on_notices_the_loss_of_a_record_that_no_machine_has_looked_at(
    pair: Pair, machines: list[Machine]
) -> None:
    one = machines[0]
    one.write(4)
    one.write(5)
    pair.take_over()
    reconnected(one).write(6)
    one.write(7)
    ((name, loss),) = one.events()
    assert (name, loss["records"]) == ("database.lost", 1)
    assert one.faults() == []
    assert [note for note in examine(one.home).notes if "lost by the database" in note]


def test_a_process_that_runs_on_and_writes_nothing_notices_the_loss_at_its_next_look(
    pair: Pair, machines: list[Machine]
) -> None:
    one = machines[0]
    one.write(4)
    one.write(5)
    pair.take_over()
    assert [name for name, _ in reconnected(one).events()] == ["database.lost"]
    one.write(6)
    assert one.faults() == []


def test_a_failover_without_loss_is_said_without_an_alert(pair: Pair, machines: list[Machine]) -> None:
    pair.take_over()
    for machine in restarted(machines, pair):
        assert [name for name, _ in machine.events()] == ["database.moved"]
        assert list(findings(machine.home)) == []
        assert not list(machine.home.run.parent.glob("escalate-failed-*"))
        machine.write(4)
        assert machine.faults() == []


def test_records_that_a_program_removed_before_the_same_server_looks_are_no_loss_of_the_database(
    pair: Pair, machines: list[Machine]
) -> None:
    one, other = machines
    one.do(lambda c: c.exec_driver_sql("DELETE FROM audit_records WHERE number = 3"))
    assert [name for name, _ in other.events()] == []
    one.do(lambda c: c.exec_driver_sql("DELETE FROM audit_records WHERE number = 4"))
    assert {name for name, _ in other.events()} == {"audit.changed"}
    assert other.faults()


def test_a_record_that_another_program_added_after_a_failover_is_a_fault_and_no_loss(
    pair: Pair, machines: list[Machine]
) -> None:
    one = machines[0]
    pair.take_over()
    (body,) = reconnected(one).do(lambda c: c.exec_driver_sql(NEWEST_BODY, (one.recorder.public,)).one())
    (row,) = linked(*one.do(lambda c: c.exec_driver_sql(END, (one.recorder.public,)).one()), NOW, [json.loads(body)])
    one.do(lambda c: c.exec_driver_sql(FORGE, {"of": one.recorder.public, **row}))
    one.write(4)
    assert "database.lost" not in [name for name, _ in one.events()]
    assert one.faults()


def test_a_shorter_chain_whose_end_is_not_signed_is_a_fault_and_no_loss(pair: Pair, machines: list[Machine]) -> None:
    one = machines[0]
    one.write(4)
    one.write(5)
    pair.take_over()
    unsigned = "UPDATE audit_chains SET signature = sha512('x') WHERE chain = %s"
    reconnected(one).do(lambda c: c.exec_driver_sql(unsigned, (one.recorder.public,)))
    one.write(6)
    assert one.faults()


def test_a_loss_began_before_it_was_noticed_also_if_its_machine_has_written_since(
    pair: Pair, machines: list[Machine]
) -> None:
    one = machines[0]
    one.write(4, 5)
    assert one.events() == []
    pair.take_over()
    (one, _) = restarted(machines, pair)
    later = SystemClock().now()
    one.do(lambda c: one.chain.append(c, later, [{"kind": "withdrawn", "entry": 6}]))
    ((name, loss),) = one.events()
    assert (name, loss["since"]) == ("database.lost", rfc3339(NOW)), "the newest record that the standby had"


def rolled_back(machine: Machine) -> None:
    """Write a record in a unit of work that is then rolled back."""

    def work(connection: Any) -> None:
        machine.chain.append(connection, NOW, [{"kind": "withdrawn", "entry": 6}])
        raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        machine.do(work)


@pytest.mark.parametrize("writes", [True, False], ids=["a write follows", "a look follows"])
def test_a_loss_is_on_record_also_if_the_unit_that_noticed_it_was_rolled_back(
    pair: Pair, machines: list[Machine], writes: bool
) -> None:
    one = machines[0]
    one.write(4)
    one.write(5)
    pair.take_over()
    rolled_back(reconnected(one))
    if writes:
        one.write(7)
    ((name, loss),) = one.events()
    assert (name, loss["records"]) == ("database.lost", 1)
    assert len([note for note in examine(one.home).notes if "lost by the database" in note]) == 1
    one.write(8)
    assert one.faults() == []


def test_a_loss_that_a_look_noticed_is_on_record_also_if_the_look_was_rolled_back(
    pair: Pair, machines: list[Machine]
) -> None:
    one = machines[0]
    one.write(4)
    one.write(5)
    pair.take_over()
    reconnected(one)

    def cut(connection: Any) -> None:
        one.chain.recorder(connection, NOW)
        found_loss(one.home, RUNNER, one.recorder, connection, NOW, [])
        raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError, match="rolled back"):
        one.do(cut)
    assert [name for name, _ in one.events()] == ["database.lost"]
    assert len([note for note in examine(one.home).notes if "lost by the database" in note]) == 1
    one.write(8)
    assert one.faults() == []


def test_a_loss_that_a_process_noticed_before_it_ended_is_told_by_the_next_process(
    pair: Pair, machines: list[Machine]
) -> None:
    one = machines[0]
    one.write(4)
    one.write(5)
    pair.take_over()
    reconnected(one).write(6)
    (one, _) = restarted(machines, pair)
    ((name, loss),) = one.events()
    assert (name, loss["records"]) == ("database.lost", 1)
    ((_, found, _),) = findings(one.home)
    assert "the database lost commits between " in found
    assert list(one.home.run.parent.glob("escalate-failed-*-database"))
    assert one.events() == [], "said once"
    one.write(7)
    assert one.faults() == []


@pytest.mark.process
def test_the_daemons_of_a_machine_continue_after_a_failover_and_say_what_it_lost(pair: Pair, home: Home) -> None:
    home.config.write_text(f'[store]\nurl = "{pair.url}"\n[node]\nname = "cellar"\n')
    machine = Constellation(home)
    try:
        machine.start()
        machine.create("often", "--every", "1s")
        machine.await_outcome("often", "succeeded", 2)
        pair.standby.catch_up(pair.primary)
        pair.standby.pause()
        held = succeeded(machine)
        machine.await_outcome("often", "succeeded", held + 3)
        pair.take_over()
        machine.until("a fire after the failover", lambda: has_run(machine, held + 2))
        machine.stop()
        told = [event for event in machine.logs if event["event"] == "database.lost"]
        assert {event["process"] for event in told} == {"task-runner", "agent-runtime"}
        assert not [event for event in machine.logs if event["event"] == "audit.changed"]
        status = machine.attempt("turnkeeper", "status")
        assert "the database lost commits between " in " ".join((status.stdout + status.stderr).split())
        assert "found that the database lost commits between " in machine.command("turnkeeper", "events")
        outcome = examine(home)
        assert outcome.faults == []
        assert [note for note in outcome.notes if "lost by the database" in note]
    finally:
        machine.stop()


def succeeded(machine: Constellation) -> int:
    return sum(fire.outcome == "succeeded" for fire in machine.fires("often"))


def has_run(machine: Constellation, count: int) -> bool:
    """Return True if so many fires have succeeded; False also while the database does not answer."""
    with suppress(TurnkeeperError):
        return succeeded(machine) >= count
    return False
