"""Memory in four tiers: what a turn leaves for later turns, and how much of it a later turn is given.

    tier           belongs to                                        seen by
    conversation   one thread                                        turns on that thread
    channel        one channel                                       turns in that channel
    workspace      the workspace                                     every turn whose category reaches it
    account        the author                                        every turn whose category reaches it

What one reading gives has a hard budget, newest entries first: the five-hundredth fire reads no more than the fifth.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, desc, func, insert, select, update

from agent_runtime.model import TurnContext
from agent_runtime.permissions import TIERS
from agent_runtime.world.model import MemoryEntry, check_text
from agent_runtime.world.tables import memory
from turnkeeper.clock import from_us, to_us
from turnkeeper.errors import Exhausted, InvalidInput

LARGEST_ENTRY = 4_000  # bytes
READING_BUDGET = 8_000  # bytes of text that one reading gives
MOST_ENTRIES = 1_000  # in one tier of one owner
_LONGEST_KEY = 100


@dataclass(frozen=True, kw_only=True)
class Recollection:
    """What one reading gave: entries, newest first, and how many more there are that did not fit."""

    entries: tuple[MemoryEntry, ...]
    left_out: int


def owner_of(tier: str, context: TurnContext, channel: str = "") -> str:
    """Return whose entries a turn means by a tier: its thread, a channel, or the one workspace or account.

    Raises:
        InvalidInput: there is no such tier.
    """
    if tier not in TIERS:
        raise InvalidInput(f"no memory tier {tier[:40]!r}", where="tier", hint=f"there are {', '.join(TIERS)}")
    return {"conversation": context.thread_id, "channel": channel or context.channel}.get(tier, "")


def read(connection: Connection, tier: str, owner: str) -> Recollection:
    """Return the newest entries whose texts fit the budget together."""
    query = select(memory).where(_of(tier, owner)).order_by(desc(memory.c.updated_at_us), memory.c.key)
    entries, room = [], READING_BUDGET
    rows = connection.execute(query).all()
    for row in rows:
        room -= len(row.text.encode())
        if room < 0:
            break
        entries.append(_to_entry(row))
    return Recollection(entries=tuple(entries), left_out=len(rows) - len(entries))


def put(
    connection: Connection,
    context: TurnContext,
    *,
    tier: str,
    owner: str,
    key: str,
    text: str,
    at: datetime,
    new_id: str,
) -> MemoryEntry:
    """Write one entry; an entry of the same key is replaced and keeps its id. An empty key makes a new entry.

    Raises:
        InvalidInput: the text or the key is too long or cannot be stored.
        Exhausted: the tier is full for this owner.
    """
    if not check_text(text, "text", LARGEST_ENTRY).strip():
        raise InvalidInput("is empty", where="text")
    if len(check_text(key, "key")) > _LONGEST_KEY:
        raise InvalidInput(f"is longer than {_LONGEST_KEY} characters", where="key")
    key = key or new_id
    news: dict[str, Any] = {
        "text": text,
        "written_by": context.agent,
        "turn_id": context.turn_id,
        "updated_at_us": to_us(at),
    }
    same = and_(_of(tier, owner), memory.c.key == key)
    if connection.execute(update(memory).where(same).values(news)).rowcount == 0:
        _refuse_when_full(connection, tier, owner)
        identity: dict[str, Any] = {
            "entry_id": new_id,
            "tier": tier,
            "owner": owner,
            "key": key,
            "created_at_us": to_us(at),
        }
        connection.execute(insert(memory).values(identity | news))
    return _to_entry(connection.execute(select(memory).where(same)).one())


def _refuse_when_full(connection: Connection, tier: str, owner: str) -> None:
    count = connection.execute(select(func.count()).select_from(memory).where(_of(tier, owner))).scalar_one()
    if count >= MOST_ENTRIES:
        hint = "replace an entry by putting its key again"
        raise Exhausted(f"the {tier} memory holds {count} entries, the most there may be", where="tier", hint=hint)


def _of(tier: str, owner: str) -> ColumnElement[bool]:
    return and_(memory.c.tier == tier, memory.c.owner == owner)


def _to_entry(row: Row[Any]) -> MemoryEntry:
    return MemoryEntry(
        entry_id=row.entry_id,
        tier=row.tier,
        owner=row.owner,
        key=row.key,
        text=row.text,
        written_by=row.written_by,
        turn_id=row.turn_id,
        created_at=from_us(row.created_at_us),
        updated_at=from_us(row.updated_at_us),
    )
