"""Fires laid out in the inboxes of agents that the runtime does not host: one row each, until it is settled and after.

The row is written once the envelope is on disk and before the fire is answered for. It ends once: delivered when the
agent's reader has archived the envelope, cancelled when it was withdrawn before, failed when it was set aside or lost.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    Integer,
    String,
    Table,
    Text,
    delete,
    select,
    update,
)

from agent_runtime.model.trigger import Trigger
from agent_runtime.store.schema import cancels, metadata
from agent_runtime.store.turn_writes import About, Happened, add_event
from turnkeeper.storage.statements import Statement, among, listed, upsert
from turnkeeper.times import to_us

deliveries = Table(
    "deliveries",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("turn_id", String(64), nullable=False, unique=True),  # named in the receipt; there is never such a turn
    Column("thread_id", String(128), nullable=False),
    Column("channel", String(128), nullable=False),
    Column("agent", String(32), nullable=False),
    Column("name", String(256), nullable=False),  # of the envelope, as it was put
    Column("fire_id", String(256), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("task_name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("settled_at_us", BigInteger),
    CheckConstraint("state IN ('waiting', 'delivered', 'cancelled', 'failed')", name="deliveries_state"),
    Index("deliveries_waiting", "agent", sqlite_where=Column("state") == "waiting"),
)


@dataclass(frozen=True, kw_only=True)
class TerminalDelivery:
    """A fire laid out in an inbox. Names are those of the columns."""

    key: str
    digest: str
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    name: str
    fire_id: str
    attempt: int
    task_name: str
    state: str
    reason: str


_COLUMNS = [deliveries.c[name] for name in TerminalDelivery.__dataclass_fields__]
_BY_KEY = Statement(select(*_COLUMNS).where(among(deliveries.c.key, "wanted")))


def add_terminal_delivery(connection: Connection, trigger: Trigger, name: str, at: datetime) -> None:
    """Write that a fire's envelope lies in its agent's inbox; one that is written already stays as it is."""
    row = upsert(deliveries, [deliveries.c.key]).values(
        key=trigger.key,
        digest=trigger.digest,
        turn_id=trigger.turn_id,
        thread_id=trigger.thread_id,
        channel=trigger.channel,
        agent=trigger.agent,
        name=name,
        fire_id=trigger.fire_id,
        attempt=trigger.attempt,
        task_name=trigger.task_name,
        state="waiting",
        reason="",
        at_us=to_us(at),
    )
    connection.execute(row)


def terminal_deliveries_by_key(connection: Connection, keys: Collection[str]) -> dict[str, TerminalDelivery]:
    """Return what was laid out, by key."""
    return {row["key"]: TerminalDelivery(**row) for row in _BY_KEY.dicts(connection, wanted=listed(keys))}


def terminal_delivery_of_turn(connection: Connection, turn_id: str) -> TerminalDelivery | None:
    """Return what was laid out under the turn id that its receipt named."""
    row = connection.execute(select(*_COLUMNS).where(deliveries.c.turn_id == turn_id)).mappings().one_or_none()
    return TerminalDelivery(**row) if row is not None else None


def waiting(connection: Connection) -> list[TerminalDelivery]:
    """Return what is laid out and not settled, oldest first."""
    query = select(*_COLUMNS).where(deliveries.c.state == "waiting").order_by(deliveries.c.at_us, deliveries.c.name)
    return [TerminalDelivery(**row) for row in connection.execute(query).mappings()]


def cancelled_among(connection: Connection, turn_ids: Sequence[str]) -> dict[str, str]:
    """Return the reasons of the cancels that are stored for any of these, by turn id."""
    query = select(cancels.c.turn_id, cancels.c.reason).where(cancels.c.turn_id.in_(turn_ids))
    return {row.turn_id: row.reason for row in connection.execute(query)}


def settle(connection: Connection, laid: TerminalDelivery, state: str, reason: str, at: datetime) -> bool:
    """Write how a laid out fire ended, with its event; False where it had ended before, which changes nothing."""
    own = (deliveries.c.key == laid.key) & (deliveries.c.state == "waiting")
    changes = {"state": state, "reason": reason, "settled_at_us": to_us(at)}
    if not connection.execute(update(deliveries).where(own).values(changes)).rowcount:
        return False
    about = About(turn_id=laid.turn_id, thread_id=laid.thread_id, fire_id=laid.fire_id, attempt=laid.attempt)
    add_event(connection, about, Happened(state=state.upper(), trigger="fire", at=at, error=reason))
    return True


def forget_hosted(connection: Connection, agents: Collection[str]) -> None:
    """Leave what waits for agents that the runtime hosts from now on to their turns."""
    mine = (deliveries.c.state == "waiting") & deliveries.c.agent.in_(list(agents))
    connection.execute(delete(deliveries).where(mine))
