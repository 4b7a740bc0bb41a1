"""What happens inside turns, told to whoever asked for it by name: the runner, for tasks that an event sets off.

    turn_start, turn_end                        a turn begins; it is over, however it ended
    agent_start, agent_end                      its graph begins or goes on after an answer; it ends, asks or pauses
    message_end                                 the agent said something, or called tools
    tool_execution_start, tool_execution_end    a tool that the guard let through begins to run; it gave an answer

Each is on disk with what it tells of, or before that can have consequences, and once: a graph that runs a step again
after a crash tells it again under the same key. While nobody has asked, nothing is written and nothing is waited for.
An event holds names and ids, never what was said or what a tool was given.
"""

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from agent_runtime.model.bell import Bell
from agent_runtime.model.decide import FINISHED
from agent_runtime.model.records import TurnRecord
from agent_runtime.model.values import Said
from agent_runtime.service.messages import stamp
from agent_runtime.store import bridged
from agent_runtime.store.bridged import BridgedRecord
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import InvalidInput

OF_TOOLS = ("tool_execution_start", "tool_execution_end")
NAMES = ("turn_start", "turn_end", "agent_start", "agent_end", "message_end", *OF_TOOLS)
SWEEP_EVERY = 1_000  # events between two looks at how many are kept
MOST_SENT = 10_000  # events of one stream; the next call acknowledges them
_STARTS = {"STARTED": "start", "RESUMED": "resume"}
_HALTS = {"INTERRUPTED": "interrupted", "PAUSED": "paused"}


class Bridge:
    """Which names are wanted, and the writing of their events inside the store's own transactions.

    All but `news` is touched by the store's one writer thread alone.

    Attributes:
        news: rings when events were added, or when another call of the stream takes the place of this one.
        serving: counts the calls of the stream; the newest is served.
    """

    def __init__(self, wanted: frozenset[str]) -> None:
        self.news = Bell()
        self.serving = 0
        self._wanted = wanted
        self._added = 0
        self._unheard = False

    @property
    def wanted(self) -> frozenset[str]:
        """The names whose events are kept."""
        return self._wanted

    def want(self, connection: Connection, names: frozenset[str], acknowledged: int) -> None:
        """Keep the events of these names from now on; forget what was read."""
        bridged.want(connection, names)
        bridged.forget(connection, acknowledged)
        self._wanted = names

    def happened(self, connection: Connection, turn_id: str, state: str, at: datetime) -> None:
        """Tell that a turn, or its graph, began, or that it waits."""
        if state == "STARTED":
            self._tell(connection, "turn_start", turn_id, at)
        if state in _STARTS:
            self._tell(connection, "agent_start", turn_id, at, mode=_STARTS[state])
        if state in _HALTS:
            self._tell(connection, "agent_end", turn_id, at, state=_HALTS[state])

    def ended(self, connection: Connection, turn: TurnRecord, state: str, at: datetime) -> None:
        """Tell that a turn is over; `turn` is as it was before that."""
        if turn.status in FINISHED:
            return
        if turn.status == "running":
            self._tell(connection, "agent_end", turn.turn_id, at, state=state)
        self._tell(connection, "turn_end", turn.turn_id, at, state=state)

    def said(self, connection: Connection, turn_id: str, lines: Sequence[Said], at: datetime) -> None:
        """Tell of the agent's messages among all that a turn has said; those that were told are told once."""
        if "message_end" in self._wanted:
            for number, line in enumerate(lines):
                if line.role == "agent":
                    self._tell(connection, "message_end", turn_id, at, key=f"{number}", number=number)

    def used(self, connection: Connection, name: str, turn_id: str, at: datetime, *, call: str, **what: Any) -> None:
        """Tell that a tool begins or has ended; `call` is equal whenever the graph makes this call again."""
        self._tell(
            connection, name, turn_id, at, key=hashlib.sha256(call.encode("utf-8", "replace")).hexdigest(), **what
        )

    def take_news(self) -> bool:
        """Return whether events were added since this was asked last."""
        unheard, self._unheard = self._unheard, False
        return unheard

    def _tell(
        self,
        connection: Connection,
        name: str,
        turn_id: str,
        at: datetime,
        *,
        key: str = "",
        tool: str = "",
        **data: Any,
    ) -> None:
        if name not in self._wanted:
            return
        known_as = f"{turn_id}|{name}|{key}" if key else None
        bridged.add(connection, name, turn_id, at, key=known_as, tool=tool, data=data)
        self._added += 1
        self._unheard = True
        if self._added % SWEEP_EVERY == 0:
            bridged.drop_beyond(connection, bridged.MOST_KEPT)


def read_names(names: Collection[str]) -> frozenset[str]:
    """Return names as they were asked for. Raises InvalidInput for one that no event has."""
    unknown = next((name for name in names if name not in NAMES), None)
    if unknown is not None:
        raise InvalidInput(f"no event {unknown[:40]!r}", where="names", hint=f"there are {', '.join(NAMES)}")
    return frozenset(names)


def bridged_message(event: BridgedRecord, incarnation: str) -> wire.BridgedEvent:
    """Return an event of the store that `incarnation` names, as the wire carries it."""
    told = {name: value for name, value in event.__dict__.items() if name != "at"}
    return wire.BridgedEvent(incarnation=incarnation, at=stamp(event.at), **told)
