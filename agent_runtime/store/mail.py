"""Mail on record: messages between agents, fires that wait in a terminal's inbox, and handoffs between sessions.

Each kind has a table whose rows outlive its envelope. Functions of an open transaction.

A delegation says who sent the message that a turn is about, on whose behalf, and whether it is answered yet.

The row of a terminal delivery is written once its envelope is on disk and before its sender is told so. It ends once:
delivered when the agent's reader has archived the envelope, cancelled when it was withdrawn before that, failed when it
was set aside or lost.

A handoff belongs to a turn from the transaction that begins the turn. So a crash before leaves it to the next turn, and
a crash after to the same one, which is shown it again when it goes on.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, select, text, update

from agent_runtime.model.decide import UNFINISHED
from agent_runtime.model.trigger import FIRST_AGENT, Trigger, TriggerHeader, header_of, sendable
from agent_runtime.model.turn import TurnRecord
from agent_runtime.store.schema import cancels, delegations, deliveries, handoffs, turns
from agent_runtime.store.turn_events import add_event
from agent_runtime.store.turn_reads import get_turn
from turnkeeper.bus.envelope import wrapped
from turnkeeper.storage.statements import Statement, among, listed, storable, upsert
from turnkeeper.times import to_us

FOR_AUTHOR = "with-author:"  # begins the key of a handoff that waits for a turn with the author
LONGEST_SHOWN = 24_000  # characters that one turn is shown, all handoffs together
LARGEST = 4 * LONGEST_SHOWN + 16  # bytes that so many characters can have
CUT = " […]"


@dataclass(frozen=True, kw_only=True)
class Delegation:
    """A message between agents. Names are those of the columns."""

    turn_id: str
    sender: str
    parent: str
    agent: str
    hops: int
    state: str


@dataclass(frozen=True, kw_only=True)
class TerminalDelivery(TriggerHeader):
    """A fire in the inbox of an agent that the runtime does not host. Names are those of the columns."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Handoff:
    """What an agent's next turn is shown. Names are those of the columns."""

    key: str
    agent: str
    kind: str
    sender: str
    text: str

    @property
    def label(self) -> str:
        """What a person reads before it."""
        return f"notes for {self.agent}" if self.kind == "notes" else f"{self.sender} to {self.agent}, {self.kind}"


def add_delegation(connection: Connection, trigger: Trigger, *, over: bool) -> None:
    """Write who sent the message that a turn is about; again changes nothing.

    Once `over`, an answer is owed to agent0, or to an agent in a terminal that began the exchange. What answers a
    message of agent0's to such an agent settles that.
    """
    begins = trigger.sender == FIRST_AGENT or not trigger.parent
    state = "none" if not begins else "owed" if over else "open"
    values = {name: getattr(trigger, name) for name in ("turn_id", "sender", "parent", "agent", "hops")}
    connection.execute(upsert(delegations, [delegations.c.turn_id]).values(**values, state=state))
    if not begins:
        asked = (delegations.c.turn_id == trigger.parent) & (delegations.c.agent == trigger.sender)
        connection.execute(update(delegations).where(asked, delegations.c.state == "open").values(state="answered"))


def answer(connection: Connection, trigger: Trigger) -> bool:
    """Let a message be the answer to what it says; False if another one is, on whichever machine it was given."""
    for asked in (delegations, deliveries):
        connection.execute(select(asked.c.turn_id).where(asked.c.turn_id == trigger.parent).with_for_update())
    if (answered_by := answer_to(connection, trigger.parent, trigger.sender)) is None:
        add_delegation(connection, trigger, over=False)
    return answered_by in {None, trigger.turn_id}


def answer_to(connection: Connection, turn_id: str, agent: str) -> str | None:
    """Return the turn that is an agent's answer to a message or a fire; None without one."""
    own = (delegations.c.parent == turn_id) & (delegations.c.sender == agent)
    return connection.execute(select(delegations.c.turn_id).where(own)).scalars().first()


def open_requests(connection: Connection, agent: str, by: str) -> list[tuple[Delegation, TurnRecord]]:
    """Return agent0's messages to an agent in a terminal that are not answered, with agent0's turns, oldest first.

    If the turn `by` is the answer to one already, that one alone.
    """
    mine = select(delegations.c.parent).where(delegations.c.turn_id == by, delegations.c.sender == agent)
    is_open = (delegations.c.state == "open") | delegations.c.turn_id.in_(mine)
    own = (delegations.c.agent == agent) & (delegations.c.sender == FIRST_AGENT) & is_open
    found = [Delegation(**row) for row in connection.execute(select(delegations).where(own)).mappings()]
    found = [item for item in found if item.state != "open"] or found
    asked = [(item, parent) for item in found if (parent := get_turn(connection, item.parent)) is not None]
    return sorted(asked, key=lambda pair: pair[1].number)


def get_delegation(connection: Connection, turn_id: str) -> Delegation | None:
    """Return who sent what a turn is about; None where no agent did."""
    row = connection.execute(select(delegations).where(delegations.c.turn_id == turn_id)).mappings().one_or_none()
    return Delegation(**row) if row is not None else None


def owe_answer(connection: Connection, turn_id: str) -> bool:
    """Note that a turn is over; return whether its sender waits for an answer."""
    return bool(_OWE.run(connection, of=turn_id))


def owed(connection: Connection) -> list[Delegation]:
    """Return what is over and not answered."""
    query = select(delegations).where(delegations.c.state == "owed").order_by(delegations.c.turn_id)
    return [Delegation(**row) for row in connection.execute(query).mappings()]


def answered(connection: Connection, turn_id: str) -> None:
    """Note that an answer is on disk."""
    own = (delegations.c.turn_id == turn_id) & (delegations.c.state == "owed")
    connection.execute(update(delegations).where(own).values(state="answered"))


def add_terminal_delivery(connection: Connection, trigger: Trigger | TriggerHeader, name: str, at: datetime) -> None:
    """Write that a fire's envelope waits in its agent's inbox; written again it stays as it is."""
    row = {**vars(header_of(trigger)), "name": name, "state": "waiting", "reason": "", "at_us": to_us(at)}
    connection.execute(upsert(deliveries, [deliveries.c.key]).values(row))


def terminal_deliveries_by_key(connection: Connection, keys: Collection[str]) -> dict[str, TerminalDelivery]:
    return {row["key"]: TerminalDelivery(**row) for row in _DELIVERIES_BY_KEY.dicts(connection, wanted=listed(keys))}


def terminal_delivery_of_turn(connection: Connection, turn_id: str) -> TerminalDelivery | None:
    """Return the terminal delivery whose receipt named this turn id; there is never such a turn."""
    query = select(*_DELIVERY).where(deliveries.c.turn_id == turn_id)
    row = connection.execute(query).mappings().one_or_none()
    return TerminalDelivery(**row) if row is not None else None


def waiting_deliveries(connection: Connection) -> list[TerminalDelivery]:
    """Return the terminal deliveries that are not settled, oldest first."""
    query = (
        select(*_DELIVERY)
        .where(deliveries.c.state == "waiting")
        .order_by(deliveries.c.at_us, deliveries.c.name, deliveries.c.key)
    )
    return [TerminalDelivery(**row) for row in connection.execute(query).mappings()]


def cancelled_among(connection: Connection, turn_ids: Sequence[str]) -> dict[str, str]:
    """Return the reasons of the cancels that are stored for any of these, by turn id."""
    query = select(cancels.c.turn_id, cancels.c.reason).where(cancels.c.turn_id.in_(turn_ids))
    return {row.turn_id: row.reason for row in connection.execute(query)}


def settle_delivery(connection: Connection, item: TerminalDelivery, state: str, reason: str, at: datetime) -> bool:
    """Write how a terminal delivery ended, with its event; return False, and change nothing, if it had ended before."""
    own = (deliveries.c.key == item.key) & (deliveries.c.state == "waiting")
    changes = {"state": state, "reason": storable(reason), "settled_at_us": to_us(at)}
    if not connection.execute(update(deliveries).where(own).values(changes)).rowcount:
        return False
    add_event(connection, item, state.upper(), at, trigger="fire", error=reason)
    return True


def drop_hosted_deliveries(connection: Connection, agents: Collection[str]) -> None:
    """Drop what waits for agents that the runtime hosts from now on: it becomes turns."""
    own = (deliveries.c.state == "waiting") & deliveries.c.agent.in_(list(agents))
    connection.execute(delete(deliveries).where(own))


def add_handoff(connection: Connection, item: Handoff, at: datetime) -> bool:
    """Keep a handoff; return False, and change nothing, if it is kept already."""
    row = upsert(handoffs, [handoffs.c.key]).values(
        **item.__dict__ | {"text": storable(item.text)}, at_us=to_us(at), turn_id=""
    )
    return bool(connection.execute(row).rowcount)


def put_notes(connection: Connection, item: Handoff, at: datetime) -> None:
    """Keep an agent's notes in place of those that no turn was shown yet."""
    own = (handoffs.c.agent == item.agent) & (handoffs.c.kind == item.kind) & (handoffs.c.turn_id == "")
    connection.execute(delete(handoffs).where(own))
    add_handoff(connection, item, at)


def give_handoffs(connection: Connection, agent: str, turn_id: str, *, with_author: bool) -> list[Handoff]:
    """Give what waits for an agent to this turn, and to no other; return it, oldest first.

    What was left for a turn with the author is given to no other.
    """
    give = _GIVE_ALL if with_author else _GIVE
    return handoffs_of(connection, turn_id) if give.run(connection, of=agent, to=turn_id) else []


def handoffs_of(connection: Connection, turn_id: str) -> list[Handoff]:
    """Return what a turn is shown, oldest first."""
    return [Handoff(**row) for row in _HANDOFFS_OF.dicts(connection, of=turn_id)]


def unfinished_with_handoffs(connection: Connection) -> set[str]:
    """Return the ids of turns that are not over and are shown something."""
    joined = select(handoffs.c.turn_id).join(turns, turns.c.turn_id == handoffs.c.turn_id)
    return set(connection.execute(joined.where(turns.c.status.in_(UNFINISHED))).scalars())


def shown(found: Sequence[Handoff]) -> str:
    """Return handoffs as a model is shown them: each in its wrapper, the newest whole before older ones. Pure.

    >>> shown([Handoff(key="k", agent="agent0", kind="handoff", sender="watchdog", text="it died")])
    '<channel source="agent" from="watchdog" kind="handoff" thread="">it died</channel>'
    """
    left, lines = LONGEST_SHOWN, list[str]()
    for item in reversed(found):
        # What is cut may end in a token that the whole was not: `<channels` after its eighth letter.
        said = item.text if len(item.text) <= left else sendable(f"{item.text[:left]}{CUT}", LARGEST)
        left -= len(said)
        lines.append(wrapped(sender=item.sender, kind=item.kind, thread="", text=said))
        if left <= 0:
            break
    left_out = len(found) - len(lines)
    return "\n".join([*([f"({left_out} older left out.)"] if left_out else []), *reversed(lines)])


_OWE = Statement(
    update(delegations)
    .where(delegations.c.turn_id == bindparam("of"), text("delegations.state = 'open'"))
    .values(state="owed")
)
_DELIVERY = [deliveries.c[name] for name in TerminalDelivery.__dataclass_fields__]
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
