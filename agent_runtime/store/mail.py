"""Recorded mail: messages between agents, fires in a terminal's inbox, and handoffs between sessions.

Each kind has a table, and its rows outlive the envelopes. The functions run in an open transaction.

A delegation names the sender of a turn's message and the sender's turn, and records whether the message is answered.

The row of a terminal delivery is written after its envelope is on disk and before the sender gets the receipt. Its
state changes once: to delivered if the agent's reader archives the envelope, to cancelled if the envelope is withdrawn
before that, to failed if it is quarantined or lost.

The transaction that begins a turn also gives it the handoff. After a crash before this transaction, the next turn gets
the handoff. After a later crash, the same turn gets the handoff again when it continues.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, literal, select, text, update

from agent_runtime.model.decide import UNFINISHED
from agent_runtime.model.mapping import from_row
from agent_runtime.model.trigger import FIRST_AGENT, Trigger, TriggerHeader, header_of, sendable
from agent_runtime.store.schema import cancels, delegations, deliveries, handoffs, turns
from agent_runtime.store.turn_events import add_event
from turnkeeper.bus.envelope import wrapped
from turnkeeper.storage.statements import Statement, among, listed, storable, upsert
from turnkeeper.times import to_us

FOR_AUTHOR = "with-author:"  # prefix of the key of a handoff that waits for a turn with the author
LONGEST_SHOWN = 24_000  # most characters of all handoffs of one turn together
LARGEST = 4 * LONGEST_SHOWN + 16  # bytes that so many characters can have
CUT = " […]"


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """A message between agents. Fields are named like the columns."""

    turn_id: str
    sender: str
    parent: str
    agent: str
    hops: int
    state: str


@dataclass(frozen=True, kw_only=True)
class TerminalDelivery(TriggerHeader):
    """A fire in the inbox of an agent that the runtime does not host. Fields are named like the columns."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """Text for an agent's next turn. Fields are named like the columns."""

    key: str
    agent: str
    kind: str
    sender: str
    text: str

    @property
    def label(self) -> str:
        """The line that precedes the text for a reader."""
        return f"notes for {self.agent}" if self.kind == "notes" else f"{self.sender} to {self.agent}, {self.kind}"


def add_delegation(connection: Connection, trigger: Trigger, *, over: bool) -> None:
    """Write the sender of the message that starts a turn. A repeated write changes nothing.

    If agent0 sent the message, or an agent in a terminal that began the exchange, the turn owes an answer: at its end,
    or now if `over`. Any other message answers, and settles, the message of agent0 that it names.
    """
    begins = trigger.sender == FIRST_AGENT or not trigger.parent
    state = "none" if not begins else "owed" if over else "open"
    values = {name: getattr(trigger, name) for name in ("turn_id", "sender", "parent", "agent", "hops")}
    connection.execute(upsert(delegations, [delegations.c.turn_id]).values(**values, state=state))
    if not begins:
        asked = (delegations.c.turn_id == trigger.parent) & (delegations.c.agent == trigger.sender)
        connection.execute(update(delegations).where(asked, delegations.c.state == "open").values(state="answered"))


def answer(connection: Connection, trigger: Trigger) -> bool:
    """Record a message as the answer to the message that it names. Return False if that one already has an answer."""
    for asked in (delegations, deliveries):
        connection.execute(select(asked.c.turn_id).where(asked.c.turn_id == trigger.parent).with_for_update())
    if (answered_by := answer_to(connection, trigger.parent, trigger.sender)) is None:
        add_delegation(connection, trigger, over=False)
    return answered_by in {None, trigger.turn_id}


def answer_to(connection: Connection, turn_id: str, agent: str) -> str | None:
    """Return the turn that contains an agent's answer to a message or a fire. None if there is none."""
    own = (delegations.c.parent == turn_id) & (delegations.c.sender == agent)
    return connection.execute(select(delegations.c.turn_id).where(own)).scalars().first()


def get_delegation(connection: Connection, turn_id: str) -> Delegation | None:
    """Return the delegation of a turn. None if no agent sent its message."""
    row = connection.execute(select(delegations).where(delegations.c.turn_id == turn_id)).mappings().one_or_none()
    return Delegation(**row) if row is not None else None


def owed(connection: Connection) -> list[Delegation]:
    """Return the unanswered messages whose turns have ended."""
    query = select(delegations).where(delegations.c.state == "owed").order_by(delegations.c.turn_id)
    return [Delegation(**row) for row in connection.execute(query).mappings()]


def answered(connection: Connection, turn_id: str) -> None:
    """Record that an answer is on disk."""
    own = (delegations.c.turn_id == turn_id) & (delegations.c.state == "owed")
    connection.execute(update(delegations).where(own).values(state="answered"))


def add_terminal_delivery(connection: Connection, trigger: Trigger | TriggerHeader, name: str, at: datetime) -> None:
    """Record that a fire's envelope waits in its agent's inbox. A repeated write changes nothing."""
    row = {**vars(header_of(trigger)), "name": name, "state": "waiting", "reason": "", "at_us": to_us(at)}
    row = {column: value for column, value in row.items() if column in deliveries.c}
    connection.execute(upsert(deliveries, [deliveries.c.key]).values(row))


def terminal_deliveries_by_key(connection: Connection, keys: Collection[str]) -> dict[str, TerminalDelivery]:
    rows = _DELIVERIES_BY_KEY.dicts(connection, wanted=listed(keys))
    return {row["key"]: from_row(TerminalDelivery, row) for row in rows}


def terminal_delivery_of_turn(connection: Connection, turn_id: str) -> TerminalDelivery | None:
    """Return the terminal delivery whose receipt named this id, which belongs to no turn."""
    query = select(*_DELIVERY).where(deliveries.c.turn_id == turn_id)
    row = connection.execute(query).mappings().one_or_none()
    return from_row(TerminalDelivery, row) if row is not None else None


def waiting_deliveries(connection: Connection) -> list[TerminalDelivery]:
    """Return the open terminal deliveries, oldest first."""
    query = select(*_DELIVERY).where(deliveries.c.state == "waiting")
    query = query.order_by(deliveries.c.at_us, deliveries.c.name, deliveries.c.key)
    return [from_row(TerminalDelivery, row) for row in connection.execute(query).mappings()]


def cancelled_among(connection: Connection, turn_ids: Sequence[str]) -> dict[str, str]:
    """Return the reasons of the cancellations stored for these turns, by turn id."""
    query = select(cancels.c.turn_id, cancels.c.reason).where(cancels.c.turn_id.in_(turn_ids))
    return {row.turn_id: row.reason for row in connection.execute(query)}


def settle_delivery(connection: Connection, item: TerminalDelivery, state: str, reason: str, at: datetime) -> bool:
    """Write the end of a terminal delivery, with its event. Return False, and change nothing, if it had ended."""
    own = (deliveries.c.key == item.key) & (deliveries.c.state == "waiting")
    changes = {"state": state, "reason": storable(reason), "settled_at_us": to_us(at)}
    if not connection.execute(update(deliveries).where(own).values(changes)).rowcount:
        return False
    add_event(connection, item, state.upper(), at, trigger="fire", error=reason)
    return True


def drop_hosted_deliveries(connection: Connection, agents: Collection[str]) -> None:
    """Delete the open deliveries of agents that the runtime now hosts, because they become turns."""
    own = (deliveries.c.state == "waiting") & deliveries.c.agent.in_(list(agents))
    connection.execute(delete(deliveries).where(own))


def add_handoff(connection: Connection, item: Handoff, at: datetime) -> bool:
    """Store a handoff. Return False, and change nothing, if it is already stored."""
    row = upsert(handoffs, [handoffs.c.key]).values(
        **item.__dict__ | {"text": storable(item.text)}, at_us=to_us(at), turn_id=""
    )
    return bool(connection.execute(row).rowcount)


def put_notes(connection: Connection, item: Handoff, at: datetime) -> None:
    """Store an agent's notes, replacing notes that no turn has received yet."""
    own = (handoffs.c.agent == item.agent) & (handoffs.c.kind == item.kind) & (handoffs.c.turn_id == "")
    connection.execute(delete(handoffs).where(own))
    add_handoff(connection, item, at)


def give_handoffs(connection: Connection, agent: str, turn_id: str, *, with_author: bool) -> list[Handoff]:
    """Give the waiting handoffs of an agent to this turn only. Return the handoffs, oldest first.

    A handoff for a turn with the author is not given to another turn.
    """
    give = _GIVE_ALL if with_author else _GIVE
    return handoffs_of(connection, turn_id) if give.run(connection, of=agent, to=turn_id) else []


def handoffs_of(connection: Connection, turn_id: str) -> list[Handoff]:
    """Return the handoffs of a turn, oldest first."""
    return [Handoff(**row) for row in _HANDOFFS_OF.dicts(connection, of=turn_id)]


def unfinished_with_handoffs(connection: Connection) -> set[str]:
    """Return the ids of unfinished turns that have a handoff."""
    joined = select(handoffs.c.turn_id).join(turns, turns.c.turn_id == handoffs.c.turn_id)
    return set(connection.execute(joined.where(turns.c.status.in_(UNFINISHED))).scalars())


def shown(found: Sequence[Handoff]) -> str:
    """Return handoffs as a model sees them, each in its wrapper. If the whole is too long, cut the oldest first. Pure.

    >>> shown([Handoff(key="k", agent="agent0", kind="handoff", sender="watchdog", text="it died")])
    '<channel source="agent" from="watchdog" kind="handoff" thread="">it died</channel>'
    """
    left, lines = LONGEST_SHOWN, list[str]()
    for item in reversed(found):
        # A cut may create a token that the whole text lacks: `<channel`, if it removes the last letter of `<channels`.
        said = item.text if len(item.text) <= left else sendable(f"{item.text[:left]}{CUT}", LARGEST)
        left -= len(said)
        lines.append(wrapped(sender=item.sender, kind=item.kind, thread="", text=said))
        if left <= 0:
            break
    left_out = len(found) - len(lines)
    return "\n".join([*([f"({left_out} older left out.)"] if left_out else []), *reversed(lines)])


OWE = Statement(  # records that a turn has ended, if its sender waits for an answer
    update(delegations)
    .where(delegations.c.turn_id == bindparam("of"), text("delegations.state = 'open'"))
    .values(state="owed")
)
_DELIVERY = [
    deliveries.c.at_us.label("fired_at_us") if name == "fired_at" else deliveries.c.get(name, literal("").label(name))
    for name in TerminalDelivery.__dataclass_fields__
]
_DELIVERIES_BY_KEY = Statement(select(*_DELIVERY).where(among(deliveries.c.key, "wanted")))
_WAITING = (handoffs.c.agent == bindparam("of")) & text("handoffs.turn_id = ''")
_GIVE_ALL = Statement(update(handoffs).where(_WAITING).values(turn_id=bindparam("to")))
_GIVE = Statement(
    update(handoffs).where(_WAITING, ~handoffs.c.key.startswith(FOR_AUTHOR)).values(turn_id=bindparam("to"))
)
_HANDOFFS_OF = Statement(
    select(*(handoffs.c[name] for name in Handoff.__dataclass_fields__))
    .where(handoffs.c.turn_id == bindparam("of"))
    .order_by(handoffs.c.at_us, handoffs.c.key)
)
