"""Records of machines that share a store: each signs a chain of its own, and any of them sees what was changed in it."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import MetaData

from tests.integration.cluster.shared import Cluster
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.constellation.audit import verify
from turnkeeper.constellation.audit.records import examine, export
from turnkeeper.constellation.upkeep.migrate import mark_restored
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import MachineTrouble
from turnkeeper.storage import chain
from turnkeeper.storage.database import Database
from turnkeeper.storage.keys import AUDIT, KeyFile
from turnkeeper.storage.schema_revision import STORES
from turnkeeper.storage.server.url import in_schema

NOW, ENTROPY = SystemClock().now(), SystemEntropy()
RUNNER = "task-runner"
Do = Callable[[Callable[[Any], Any]], Any]


class Machine:
    """A home that writes records into the runner's store of a shared database, and sees those of others."""

    def __init__(self, url: str, home: Home, name: str) -> None:
        self.home, self.name = home, name
        self._database = Database(in_schema(url, "runner"), migrations=STORES["runner"], connections=2)
        self.chain, self.told = chain.Chain(chain.table_of(MetaData()), RUNNER), []
        self.recorder = chain.Recorder.of(home, NOW, ENTROPY, name)
        self.do(lambda c: self.chain.begin(c, NOW, ENTROPY, dict, self.recorder))

    def do(self, work: Callable[[Any], Any]) -> Any:
        return self._database.submit(work).result()

    def write(self, *entries: int) -> None:
        facts = [{"kind": "withdrawn", "entry": entry} for entry in entries]
        self.do(lambda c: self.chain.append(c, NOW, facts))

    def look(self) -> list[str]:
        """Look up to where the chains reach; return what is strange."""
        return [said["what"] for name, said in self.events() if name == "audit.changed"]

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Look up to where the chains reach; return what is logged."""
        told: list[tuple[str, dict[str, Any]]] = []

        async def transact(work: Callable[[Any], Any]) -> Any:
            return self.do(work)

        made = chain.Witness(
            self.home,
            transact,
            self.chain,
            clock=SystemClock(),
            entropy=ENTROPY,
            emit=lambda name, *, durable=False, **said: told.append((name, said)),
        )
        asyncio.run(made.sign())
        assert made.trouble == ""
        return told

    def faults(self, *keys: str) -> list[str]:
        """Return what verify says of the runner's store."""
        return [fault for fault in examine(self.home, keys).faults if fault.startswith(RUNNER)]

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[list[Machine]]:
    made = [Machine(cluster.url, cluster.home(number), name) for number, name in enumerate(("cellar", "garage"), 1)]
    for machine in made:
        machine.write(1, 2, 3)
    for machine in made:
        machine.look()
        assert machine.faults() == []
    yield made
    for machine in made:
        machine.close()


def key(machine: Machine) -> str:
    return machine.recorder.public


def test_machines_do_not_wait_for_each_other_to_write_records_and_one_waits_for_itself(
    machines: Sequence[Machine],
) -> None:
    one, other = machines

    def while_open(first: Machine, second: Machine) -> bool:
        """Tell whether the second can write before the first commits."""

        def work(connection: Any) -> bool:
            first.chain.append(connection, NOW, [{"kind": "withdrawn", "entry": 9}])

            def within(beside: Any) -> None:
                beside.exec_driver_sql("SET LOCAL lock_timeout = '200ms'")
                second.chain.append(beside, NOW, [{"kind": "withdrawn", "entry": 10}])

            second.do(within)
            return True

        return bool(first.do(work))

    assert while_open(one, other)
    with pytest.raises(MachineTrouble, match="lock timeout"):  # its own chain has one end
        while_open(one, one)
    assert (one.faults(), other.faults()) == ([], [])


def test_a_transaction_that_wrote_two_records_and_is_undone_breaks_no_chain(machines: Sequence[Machine]) -> None:
    one = machines[0]

    def undone(connection: Any) -> None:
        one.chain.append(connection, NOW, [{"kind": "withdrawn", "entry": 4}])
        one.chain.append(connection, NOW, [{"kind": "withdrawn", "entry": 5}])
        raise ValueError

    with pytest.raises(ValueError):
        one.do(undone)
    one.write(6)
    assert one.faults() == []


def test_a_home_marks_the_shorter_of_its_chains_as_put_back_and_does_not_call_it_broken(
    cluster: Cluster, machines: Sequence[Machine]
) -> None:
    one = machines[0]
    runtime = chain.SharedChains("agent-runtime", "runtime")
    one.do(lambda c: runtime.begin(c, NOW, one.recorder, dict))
    cluster.sql.execute("DELETE FROM runtime.owners")
    one.close()
    mark_restored(one.home)
    assert [fault for fault in examine(one.home).faults if "changed by another program" in fault] == []


TAMPERED = {
    "content": "UPDATE audit_records SET body = replace(body, '2', '4') WHERE chain = %(of)s AND number = 3",
    "time": "UPDATE audit_records SET at_us = at_us + 1 WHERE chain = %(of)s AND number = 2",
    "hash": "UPDATE audit_records SET hash = sha256('x') WHERE chain = %(of)s AND number = 2",
    "removed": "DELETE FROM audit_records WHERE chain = %(of)s AND number = 2",
    "content removed": "UPDATE audit_records SET body = NULL WHERE chain = %(of)s AND number = 2",
    "order": """UPDATE audit_records r SET (body, content_hash, hash, at_us) = (SELECT body, content_hash, hash, at_us
        FROM audit_records o WHERE o.chain = r.chain AND o.number = 5 - r.number)
        WHERE chain = %(of)s AND number IN (2, 3)""",
    "tail": "DELETE FROM audit_records WHERE chain = %(of)s AND number = 4",
    "tail, and the end": """WITH gone AS (DELETE FROM audit_records WHERE chain = %(of)s AND number = 4)
        UPDATE audit_chains SET number = 3, hash = (SELECT hash FROM audit_records r
        WHERE r.chain = %(of)s AND r.number = 3) WHERE chain = %(of)s""",
    "inserted": """WITH new AS (INSERT INTO audit_records SELECT chain, 5, at_us, body, content_hash,
        sha256(hash || content_hash || at_us::text::bytea) FROM audit_records WHERE chain = %(of)s AND number = 4
        RETURNING hash) UPDATE audit_chains SET number = 5, hash = (SELECT hash FROM new) WHERE chain = %(of)s""",
    "the end": "DELETE FROM audit_chains WHERE chain = %(of)s",
    "signature": "UPDATE audit_chains SET signature = sha512('x') WHERE chain = %(of)s",
    "key": """WITH moved AS (UPDATE audit_records SET chain = repeat('ab', 32) WHERE chain = %(of)s)
        UPDATE audit_chains SET chain = repeat('ab', 32) WHERE chain = %(of)s""",
    "chain": """WITH gone AS (DELETE FROM audit_records WHERE chain = %(of)s)
        DELETE FROM audit_chains WHERE chain = %(of)s""",
}  # fmt: skip


def test_every_change_of_a_chain_is_named_on_any_machine(machines: Sequence[Machine], cluster: Cluster) -> None:
    cluster.sql.execute("SET search_path = runner")
    for table in ("audit_records", "audit_chains"):
        cluster.sql.execute(f"CREATE TABLE public.{table} AS TABLE {table}".encode())
    for what, statement in TAMPERED.items():
        for whose in machines:
            cluster.sql.execute(statement.encode(), {"of": key(whose)})
            for machine in machines:
                faults = machine.faults()
                assert [fault for fault in faults if f"by {whose.name}" in fault], (what, whose.name, faults)
            for table in ("audit_records", "audit_chains"):
                cluster.sql.execute(f"TRUNCATE {table}".encode())
                cluster.sql.execute(f"INSERT INTO {table} TABLE public.{table}".encode())
    assert [machine.faults() for machine in machines] == [[], []]


def test_a_chain_that_is_written_anew_or_put_back_fits_no_longer_what_others_saw(
    machines: Sequence[Machine], cluster: Cluster
) -> None:
    one, other = machines
    cluster.sql.execute("SET search_path = runner")
    of = {"of": key(one)}
    (end,) = cluster.rows("SELECT number, hash, signature FROM audit_chains WHERE chain = %s", key(one))
    one.write(4)
    one.write(5)
    assert other.look() == []
    # Whoever has the database puts an earlier end back, which is signed as it should be.
    cluster.sql.execute("DELETE FROM audit_records WHERE chain = %(of)s AND number >= 5", of)
    cluster.sql.execute(
        "UPDATE audit_chains SET (number, hash, signature) = (%s, %s, %s) WHERE chain = %s", (*end, key(one))
    )
    (fault,) = other.faults()
    assert "seen up to record 6, which is missing: the end was cut off" in fault
    assert [what for what in other.look() if "record 6 of task-runner by cellar" in what]
    assert other.look() == [], "said once"
    (fault,) = other.faults()
    assert "seen up to record 6" in fault, "what was seen is kept"
    # The machine itself knows how far it was, and says so in its next record.
    one.write(6)
    assert [fault for fault in one.faults() if "before record 5 was changed by another program" in fault]


def test_records_that_were_put_in_before_the_machines_next_one_are_not_signed_in_silence(
    machines: Sequence[Machine], cluster: Cluster
) -> None:
    one, other = machines
    cluster.sql.execute("SET search_path = runner")
    cluster.sql.execute(TAMPERED["inserted"].encode(), {"of": key(one)})
    one.write(4)
    for machine in machines:
        (fault,) = machine.faults()
        assert "the chain before record 6 was changed by another program" in fault
    other.write(4)


def test_another_key_goes_on_and_only_trusted_keys_count_where_they_are_named(
    machines: Sequence[Machine], cluster: Cluster
) -> None:
    one, other = machines
    assert other.faults(key(one)) == []
    stranger = Machine(cluster.url, cluster.home(3), "cellar")
    stranger.write(7)
    assert other.faults() == []
    assert [
        fault for fault in other.faults(key(one)) if "a key that is not trusted" in fault and key(stranger) in fault
    ]
    stranger.close()
    cluster.sql.execute(b"DELETE FROM runner.audit_chains WHERE chain = %s", (key(stranger),))
    cluster.sql.execute(b"DELETE FROM runner.audit_records WHERE chain = %s", (key(stranger),))
    KeyFile(one.home, AUDIT).rotate(SystemClock().now(), ENTROPY)
    assert one.look() == []
    one.write(8)
    keys = {row[0] for row in cluster.rows("SELECT chain FROM runner.audit_chains")}
    assert len(keys) == 3
    assert other.faults(key(one)) == [], "the key before says which one goes on"
    lines = [json.loads(json.dumps(line)) for line in export(other.home)]
    assert verify.check(lines).faults == []
    assert verify.check(lines, [key(one), key(other)]).faults == []


def restored_as_before(self: chain.SharedChains, connection: Any, at: Any, of: Any, incarnation: str) -> None:
    """Record a restore as earlier versions did: with the numbers that the chains have after the records of the restore."""
    self.begin(connection, at, of, dict)
    ends = [[head["chain"], head["through"]] for head in self.heads(connection)]
    self.append(connection, at, [{"kind": chain.RESTORED, "incarnation": incarnation, "ends": ends}], of)


@pytest.mark.parametrize("records", [chain.SharedChains.restored, restored_as_before], ids=["now", "by an old version"])
def test_a_database_of_before_a_new_key_verifies_after_it_was_marked_as_restored(
    machines: list[Machine], cluster: Cluster, records: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain.SharedChains, "restored", records)
    one, other = machines
    cluster.sql.execute("SET search_path = runner")
    tables = ("audit_records", "audit_chains")
    for table in tables:
        cluster.sql.execute(f"CREATE TABLE public.{table} AS TABLE {table}".encode())
    KeyFile(one.home, AUDIT).rotate(SystemClock().now(), ENTROPY)
    assert one.look() == other.look() == []  # the chain of the new key begins
    one.write(8)
    assert one.look() == other.look() == []
    for machine in machines:
        machine.close()
    for table in tables:
        cluster.sql.execute(f"TRUNCATE {table}".encode())
        cluster.sql.execute(f"INSERT INTO {table} TABLE public.{table}".encode())
    cluster.sql.execute("DELETE FROM runtime.owners")
    mark_restored(one.home)
    machines[:] = [Machine(cluster.url, machine.home, machine.name) for machine in machines]
    for machine in machines:
        machine.write(9)
        machine.look()
        assert machine.faults() == []
    assert examine(other.home).notes
