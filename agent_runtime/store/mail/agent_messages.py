"""Messages between agents: who sent the one that a turn is about, on whose behalf, and whether it is answered yet."""

from dataclasses import dataclass

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    bindparam,
    select,
    text,
    update,
)

from agent_runtime.store.schema import metadata
from turnkeeper.storage.statements import Statement, upsert

# One row a turn that an agent's message is about, written with the turn.
delegations = Table(
    "delegations",
    metadata,
    Column("turn_id", String(64), primary_key=True),
    Column("sender", String(32), nullable=False),
    Column("parent", String(64), nullable=False),  # the sender's turn
    Column("agent", String(32), nullable=False),  # whom it was sent to
    Column("hops", Integer, nullable=False),  # messages since an author or a fire
    # none: nobody waits for an answer; open: its turn goes on; owed: it is over; answered: its answer is on disk
    Column("state", String(16), nullable=False),
    CheckConstraint("state IN ('none', 'open', 'owed', 'answered')", name="delegations_state"),
    Index("delegations_owed", "turn_id", sqlite_where=Column("state") == "owed"),
)


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """A message between agents. Names are those of the columns."""

    turn_id: str
    sender: str
    parent: str
    agent: str
    hops: int
    state: str


def add_delegation(connection: Connection, item: Delegation) -> None:
    """Write who sent what a turn is about; written again it stays as it is."""
    connection.execute(upsert(delegations, [delegations.c.turn_id]).values(**item.__dict__))


def get_delegation(connection: Connection, turn_id: str) -> Delegation | None:
    """Return who sent what a turn is about; None where no agent did."""
    row = connection.execute(select(delegations).where(delegations.c.turn_id == turn_id)).mappings().one_or_none()
    return Delegation(**row) if row is not None else None


def owe_answer(connection: Connection, turn_id: str) -> bool:
    """Note that a turn is over, and whether its sender waits for what it came to."""
    return bool(_OWE.run(connection, of=turn_id))


def owed(connection: Connection) -> list[Delegation]:
    """Return what is over and not answered."""
    query = select(delegations).where(delegations.c.state == "owed")
    return [Delegation(**row) for row in connection.execute(query).mappings()]


def answered(connection: Connection, turn_id: str) -> None:
    """Note that an answer is on disk."""
    mine = (delegations.c.turn_id == turn_id) & (delegations.c.state == "owed")
    connection.execute(update(delegations).where(mine).values(state="answered"))


_OWE = Statement(
    update(delegations)
    .where(delegations.c.turn_id == bindparam("of"), text("delegations.state = 'open'"))
    .values(state="owed")
)
