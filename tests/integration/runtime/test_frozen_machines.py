"""A runtime that stands still (SIGSTOP) in the middle of a transaction of a turn holds up the turns of no other thread.

A trigger makes the server wait at a statement of that turn. The process is stopped there, and then the statement ends.
The server would end its session after ten seconds, and its lease would expire; neither is to help the others.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, update

from agent_runtime.store import schema
from tests.integration.cluster.test_cost import CATEGORY
from tests.integration.runtime.test_several_machines import CLOCK, Node, ended, fire, made_home, until
from tests.support.cluster import Do, doing
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.v1 import agent_runtime_pb2 as wire

HELD = """CREATE FUNCTION runtime.held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF current_setting('application_name') LIKE '%% slow' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', '0', false);
        PERFORM pg_advisory_xact_lock_shared(77);
    END IF;
    RETURN NULL;
END $$"""
AT = {
    "begin: its turn": "INSERT ON runtime.turns",
    "begin: its outcome, and a record of tokens": "INSERT ON runtime.turn_events",
    "writes: a message": "INSERT ON runtime.messages",
    "writes: the tokens of the day": "INSERT OR UPDATE ON runtime.token_days",
    "writes: a checkpoint": "INSERT ON runtime.checkpoints",
    "a tool: what it wrote": "INSERT ON runtime.effects",
    "end: before the commit": "INSERT ON runtime.audit_records",
    "after the end: its envelope": "DELETE ON runtime.envelopes",
}
SLOW = (
    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%% slow' AND datname = current_database()"
    " AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
)


@pytest.fixture
def sql(shared_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(shared_url, autocommit=True) as made:
        yield made


def remembering(number: int) -> dict[str, Any]:
    """Return a fire's request, as a runner sends it. Its turn calls one tool."""
    row = fire(number)
    asked = wire.FireRequest.FromString(row["envelope"])
    asked.category, asked.prompt = "note", f"Remember: pump {number} is new"
    return {**row, "envelope": asked.SerializeToString()}


def put(do: Do, *numbers: int) -> None:
    do(lambda c: schema.handover.put_all(c, [remembering(number) for number in numbers], CLOCK.now()))


@pytest.mark.process
@pytest.mark.parametrize("where", AT)
def test_a_process_that_stands_still_in_a_turn_stops_the_turns_of_its_thread_only(
    where: str, shared_url: str, sql: psycopg.Connection[Any]
) -> None:
    with ExitStack() as stack:
        do = stack.enter_context(doing(in_schema(shared_url, SCHEMA)))
        slow = named(stack, shared_url, "slow")
        slow.wait()
        sql.execute(HELD.encode())
        sql.execute(
            f"CREATE TRIGGER held AFTER {AT[where]} FOR EACH STATEMENT EXECUTE FUNCTION runtime.held()".encode()
        )
        sql.execute("SELECT pg_advisory_lock(77)")
        put(do, 0)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
        until(lambda: sql.execute(waits).fetchall()[0][0], "its turn waits at the statement")
        slow.signal(signal.SIGSTOP)
        do(keep_lease)
        sql.execute("SELECT pg_advisory_unlock(77)")
        until(lambda: sql.execute(SLOW).fetchall(), "it stands still within a transaction")
        before = do(ended)
        other = named(stack, shared_url, "other")
        other.wait()
        put(do, 1, 2, 3)
        until(lambda: do(ended) == before + 3, "the turns of other threads have ended")
        assert sql.execute(SLOW).fetchall(), "the process still stands where it stood"


def named(stack: ExitStack, url: str, name: str) -> Node:
    home = stack.enter_context(made_home())
    (home.categories / "note.toml").write_text(CATEGORY)
    made = Node(home, url, node=name)
    stack.callback(made.end)
    return made


def keep_lease(connection: Connection) -> None:
    """Let the leases of all owners last, so that no other takes the thread, and waits for the row of it."""
    connection.execute(update(schema.owners).values(until_us=9_000_000_000_000_000))
