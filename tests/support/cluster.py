"""Owners of threads in a shared database."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, update

from agent_runtime.store import leases, schema
from agent_runtime.store.database import open_database
from agent_runtime.store.leases import Lease
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema

Do = Callable[[Callable[[Connection], Any]], Any]


@contextmanager
def doing(url: str) -> Iterator[Do]:
    """Run functions of a connection, each in a transaction of the runtime's store."""
    database = open_database(url)
    try:
        yield lambda work: database.submit(work).result()
    finally:
        database.close()


def taken(url: str, thread_id: str = "t", owner: str = "one") -> tuple[str, Lease]:
    """Create the store at a server's URL and own a thread there. Return the store's own URL and the lease."""
    place = in_schema(url, SCHEMA)
    with doing(place) as do:
        do(lambda c: leases.begin(c, owner))
        lease = do(lambda c: leases.take(c, thread_id, owner))
    assert lease is not None
    return place, lease


def end_lease(connection: Connection, owner: str | int) -> None:
    """Expire the lease of an owner, given by name or process id, as if it had been stopped too long."""
    of_process = schema.owners.c.owner.contains(f"/{owner}/")
    connection.execute(
        update(schema.owners).where((schema.owners.c.owner == str(owner)) | of_process).values(until_us=0)
    )
