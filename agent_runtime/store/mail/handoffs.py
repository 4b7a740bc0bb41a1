"""What an agent's next session is told of the one before: kept until one turn is shown it, and for that turn after.

A row belongs to a turn from the transaction that begins the turn. So a crash before leaves it to the next turn, and a
crash after to the same one, which is shown it again when it goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    String,
    Table,
    Text,
    bindparam,
    delete,
    select,
    text,
    update,
)

from agent_runtime.model.trigger import sendable
from agent_runtime.store.schema import metadata, turns
from turnkeeper.bus.envelope import wrapped
from turnkeeper.storage.statements import Statement, upsert
from turnkeeper.times import to_us

LONGEST_SHOWN = 24_000  # characters that one turn is shown, all handoffs together
LARGEST = 4 * LONGEST_SHOWN + 16  # bytes that so many characters can have
CUT = " […]"

handoffs = Table(
    "handoffs",
    metadata,
    Column("key", String(256), primary_key=True),  # of the envelope: what comes twice is one row
    Column("agent", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("sender", String(64), nullable=False),
    Column("text", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("turn_id", String(64), nullable=False),  # that is shown it; empty until one is
    CheckConstraint("kind IN ('handoff', 'notes')", name="handoffs_kind"),
    Index("handoffs_waiting", "agent", sqlite_where=Column("turn_id") == ""),
    Index("handoffs_by_turn", "turn_id"),
)


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """What an agent is to be told. Names are those of the columns."""

    key: str
    agent: str
    kind: str
    sender: str
    text: str

    @property
    def label(self) -> str:
        """What a person reads before it."""
        return f"notes for {self.agent}" if self.kind == "notes" else f"{self.sender} to {self.agent}, {self.kind}"


def add_handoff(connection: Connection, item: Handoff, at: datetime) -> bool:
    """Keep a handoff; False if it is kept already, which changes nothing."""
    row = upsert(handoffs, [handoffs.c.key]).values(**item.__dict__, at_us=to_us(at), turn_id="")
    return bool(connection.execute(row).rowcount)


def put_notes(connection: Connection, item: Handoff, at: datetime) -> None:
    """Keep an agent's notes in place of those that no turn was shown yet."""
    mine = (handoffs.c.agent == item.agent) & (handoffs.c.kind == item.kind) & (handoffs.c.turn_id == "")
    connection.execute(delete(handoffs).where(mine))
    add_handoff(connection, item, at)


def give(connection: Connection, agent: str, turn_id: str) -> list[Handoff]:
    """Leave what waits for an agent to this turn; return it, oldest first. No other turn will be given it."""
    return given(connection, turn_id) if _GIVE.run(connection, of=agent, to=turn_id) else []


def given(connection: Connection, turn_id: str) -> list[Handoff]:
    """Return what a turn is shown, oldest first."""
    return [Handoff(**row) for row in _GIVEN.dicts(connection, of=turn_id)]


def given_to_unfinished(connection: Connection) -> set[str]:
    """Return the ids of turns that are not over and are shown something."""
    open_turns = turns.c.status.in_(("running", "interrupted", "paused"))
    query = select(handoffs.c.turn_id).join(turns, turns.c.turn_id == handoffs.c.turn_id).where(open_turns)
    return set(connection.execute(query).scalars())


def shown(found: Sequence[Handoff]) -> str:
    """Return handoffs as a model is shown them: each in its wrapper, the newest whole before older ones. Pure.

    >>> shown([Handoff(key="k", agent="agent0", kind="handoff", sender="watchdog", text="it died")])
    '<channel source="agent" from="watchdog" kind="handoff" thread="">it died</channel>'
    """
    room, lines = LONGEST_SHOWN, list[str]()
    for item in reversed(found):
        # What is cut may end in a token that the whole was not: `<channels` after its eighth letter.
        said = item.text if len(item.text) <= room else sendable(f"{item.text[:room]}{CUT}", LARGEST)
        room -= len(said)
        lines.append(wrapped(sender=item.sender, kind=item.kind, thread="", text=said))
        if room <= 0:
            break
    left_out = len(found) - len(lines)
    return "\n".join([*([f"({left_out} older left out.)"] if left_out else []), *reversed(lines)])


_GIVE = Statement(
    update(handoffs)
    .where(handoffs.c.agent == bindparam("of"), text("handoffs.turn_id = ''"))
    .values(turn_id=bindparam("to"))
)
_GIVEN = Statement(
    select(*(handoffs.c[name] for name in Handoff.__dataclass_fields__))
    .where(handoffs.c.turn_id == bindparam("of"))
    .order_by(handoffs.c.at_us, handoffs.c.key)
)
