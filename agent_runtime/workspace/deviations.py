"""Deviation records: where something contradicts a canonical page. Agents and the boundary make them.

Only an author closes one. The functions that write are the submit boundary's; nothing else calls them.
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, desc, func, insert, select, update

from agent_runtime.model.values import TurnContext
from agent_runtime.store.beside import deviations
from agent_runtime.workspace.contradictions import Difference
from turnkeeper.clock import from_us, to_us
from turnkeeper.errors import NotFound

LONGEST_STATEMENT = 1_000  # bytes
LONGEST_NOTE = 4_096  # bytes
MOST_ROWS = 1_000
DEVIATION = "deviation"


@dataclass(frozen=True, kw_only=True)
class DeviationDraft:
    """A contradiction as an agent found it.

    Attributes:
        page_id: the canonical page.
        says: a statement quoted from it.
        found: what contradicts that.
        source: where that stands: a page, or an address on the web; may be empty.
        why: a sentence for the author; may be empty.
        item_id: the item of the re-validation queue that this answers; empty for none.
    """

    page_id: str
    says: str
    found: str
    source: str = ""
    why: str = ""
    item_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The author's decision about a deviation: the page stands, or what was found is accepted.

    Accepting one that a waiting candidate is about accepts the candidate too.
    """

    deviation_id: str
    accept: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A record.

    Attributes:
        deviation_id: its id.
        kind: contradiction; or stale-base: the page has changed since the candidate was made.
        channel: whose conversation shows it.
        page_id: the canonical page.
        page_version: of that page, at the time.
        says: the page's statement.
        found: what contradicts it.
        source: where that stands; empty: in the candidate.
        candidate_id: the candidate that it is about; empty for none.
        why: what the agent said to it.
        origin: agent-produced, or observed where the boundary noticed it itself.
        lifecycle: open, kept (the page stands) or accepted.
        turn_id: the turn whose write it is about.
        task_name: that turn's task; empty for an author's turn.
        created_at: when it was recorded.
        decided_at: when the author decided.
        note: what the author said to it.
    """

    deviation_id: str
    kind: str
    channel: str
    page_id: str
    page_version: int
    says: str
    found: str
    source: str
    candidate_id: str
    why: str
    origin: str
    lifecycle: str
    turn_id: str
    task_name: str
    created_at: datetime
    decided_at: datetime | None
    note: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """What a deviation is about: a page in a version, a candidate, and where the other statement stands."""

    page_id: str
    page_version: int
    kind: str = "contradiction"
    source: str = ""
    candidate_id: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The turn whose write a deviation is about, and who noticed: the agent, or the boundary."""

    origin: str
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    task_name: str

    @classmethod
    def of(cls, turn: TurnContext, origin: str) -> "Writer":
        """Return a running turn as a writer."""
        return cls(
            origin=origin,
            turn_id=turn.turn_id,
            thread_id=turn.thread_id,
            channel=turn.channel,
            agent=turn.agent,
            task_name=turn.task_name,
        )


def record(connection: Connection, place: Place, found: Difference, writer: Writer, at: datetime) -> tuple[str, bool]:
    """Keep a deviation, open; return its id, and whether it is new.

    One that says the same and is open stays as it is: it is about the same candidate, or takes this one as its own, or
    this is about none. What another candidate says in the same words is a record of its own, decided by itself.
    """
    same = (
        (deviations.c.page_id == place.page_id)
        & (deviations.c.says == found.says)
        & (deviations.c.found == found.found)
        & (deviations.c.lifecycle == "open")
    )
    query = (
        select(deviations.c.candidate_id, deviations.c.deviation_id).where(same).order_by(deviations.c.created_at_us)
    )
    open_: dict[str, str] = {row.candidate_id: row.deviation_id for row in connection.execute(query).all()}
    if place.candidate_id in open_:
        return open_[place.candidate_id], False
    if open_ and not place.candidate_id:
        return next(iter(open_.values())), False
    if "" in open_:
        one = deviations.c.deviation_id == open_[""]
        connection.execute(update(deviations).where(one).values(candidate_id=place.candidate_id))
        return open_[""], False
    number = connection.execute(select(func.count()).select_from(deviations)).scalar_one()
    said = "\n".join((writer.turn_id, place.page_id, found.says, found.found, str(to_us(at)), str(number)))
    row = {
        **place.__dict__,
        **found.__dict__,
        **writer.__dict__,
        "deviation_id": f"d-{sha256(said.encode()).hexdigest()[:12]}",
        "lifecycle": "open",
        "created_at_us": to_us(at),
        "decided_at_us": None,
        "decided_by": "",
        "note": "",
    }
    connection.execute(insert(deviations).values(row))
    return str(row["deviation_id"]), True


def close(connection: Connection, deviation_id: str, *, accept: bool, by: str, note: str, at: datetime) -> None:
    """Close a deviation by an author's decision."""
    decided = {
        "lifecycle": "accepted" if accept else "kept",
        "decided_at_us": to_us(at),
        "decided_by": by,
        "note": note,
    }
    connection.execute(update(deviations).where(deviations.c.deviation_id == deviation_id).values(decided))


def close_of_candidate(connection: Connection, candidate_id: str, *, accept: bool, by: str, at: datetime) -> None:
    """Close the open deviations that were about a candidate which the author has decided."""
    for deviation_id in of_candidate(connection, candidate_id):
        close(connection, deviation_id, accept=accept, by=by, note="", at=at)


def get_deviation(connection: Connection, deviation_id: str) -> Deviation:
    """Return a record. Raises NotFound."""
    row = connection.execute(select(deviations).where(deviations.c.deviation_id == deviation_id)).one_or_none()
    if row is None:
        raise NotFound(f"no deviation {deviation_id[:64]!r}", hint="see: agent-runtime deviations list")
    return to_deviation(row)


def list_deviations(connection: Connection, *, channel: str = "", include_decided: bool = False) -> list[Deviation]:
    """Return records, newest first: those that are open, or all; of one channel, or of every. At most a thousand."""
    query = select(deviations).order_by(desc(deviations.c.created_at_us), deviations.c.deviation_id).limit(MOST_ROWS)
    if channel:
        query = query.where(deviations.c.channel == channel)
    if not include_decided:
        query = query.where(deviations.c.lifecycle == "open")
    return [to_deviation(row) for row in connection.execute(query)]


def open_on(connection: Connection, page_id: str) -> list[Deviation]:
    """Return the open records about a page."""
    query = select(deviations).where(deviations.c.page_id == page_id, deviations.c.lifecycle == "open")
    return [to_deviation(row) for row in connection.execute(query)]


def of_candidate(connection: Connection, candidate_id: str) -> list[str]:
    """Return the ids of the open records about a candidate."""
    about = (deviations.c.candidate_id == candidate_id) & (deviations.c.lifecycle == "open")
    query = select(deviations.c.deviation_id).where(about).order_by(deviations.c.deviation_id)
    return list(connection.execute(query).scalars())


def to_deviation(row: Row[Any]) -> Deviation:
    """Return a row as a value."""
    at = row.decided_at_us
    named = {name: getattr(row, name) for name in Deviation.__dataclass_fields__ if not name.endswith("_at")}
    return Deviation(**named, created_at=from_us(row.created_at_us), decided_at=None if at is None else from_us(at))
