"""The inboxes of hosted agents in a store that machines share: rows that a process claims thread by thread.

A process owns a thread while it handles the thread's envelopes, and releases the thread after its last envelope. It
renews the lease of all its threads together, every two seconds. After ten seconds without a renewal it stops its turns,
before another process may take the threads. The inboxes of agents in terminals are rows too. Only data of one machine
stays in files: handoffs, shutdowns, and outgoing messages of agents in terminals.
"""

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from agent_runtime.mailbox.mailboxes import Delivery, Mailboxes
from agent_runtime.model import trigger as triggers
from agent_runtime.model.decide import Incoming
from agent_runtime.store import leases, mail
from agent_runtime.store.leases import Lease, get_meta, set_meta
from agent_runtime.store.schema import handover
from agent_runtime.store.turn_reads import get_keys
from turnkeeper.bus.envelope import Envelope, decode, encoded, turn_id_of
from turnkeeper.bus.event_log import EventLog
from turnkeeper.bus.folders import EnvelopeState
from turnkeeper.bus.inbox import Claimed, Put
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.errors import InvalidInput, TurnkeeperError
from turnkeeper.storage.database import Database, Query
from turnkeeper.storage.files import replace_whole
from turnkeeper.storage.nodes import AGENTS, CORDONED, TAG, UNUSABLE, digest
from turnkeeper.storage.server import inboxes
from turnkeeper.storage.server.handover import FIRE, LOOK, notify
from turnkeeper.storage.statements import listed

RENEW_S = 2.0
FENCE_S = 10.0  # limit without a renewal, which is shorter than a lease
MOST_OWNED = 128  # threads; more than can run, because some threads wait for the end of a pause
MOST_TAKEN = 32  # threads taken at once, so that other machines get some threads
LEFT_S = 5.0  # time until the next check of a thread that was left to other machines
_AGENT = "agent"
ReadFire = Callable[[bytes], triggers.Trigger]
OnTaken = Callable[[str], Awaitable[None]]


class Ownership:
    """The threads that this process owns.

    Attributes:
        lacking: digests of the categories and graphs that only other machines have.
        lacks: the requirements of a fire that this process cannot meet, in the form of machines' facts.
        node: the name of this machine.
        cordoned: since when this machine has taken no new turns; empty if it takes new turns.
        others: the facts of the other live runtimes.
    """

    def __init__(self, database: Database, named: Path, *, clock: Clock, entropy: Entropy, log: EventLog) -> None:
        """Take a separate connection, so that a renewal never waits for other work.

        `named` is a file of the home with the name of its last owner; one process at a time uses the file.
        """
        self._named = named
        self._database, self._clock, self._entropy, self._log = database, clock, entropy, log
        self.owner = self.cordoned = ""
        self.held: dict[str, Lease] = {}
        self.node = ""
        self._taking = False
        self.lacking: Callable[[], Collection[str]] = tuple
        self.agents: Collection[str] = (triggers.FIRST_AGENT,)
        self.lacks: Callable[[bytes], Collection[str]] = lambda _data: ()
        self.others: Callable[[], Sequence[Mapping[str, str]]] = tuple
        self._elsewhere: set[str] = set()  # agents and tags that only other machines have
        self._left: dict[str, float] = {}  # by thread: until when the thread is left to others, in monotonic time
        self._on_lost: Callable[[str], None]
        self._strays: set[Lease] = set()
        self._renewed = clock.monotonic()
        self._keeping: asyncio.Task[None] | None = None

    async def begin(self, on_lost: Callable[[str], None]) -> None:
        """Become an owner. `on_lost` is called for each thread that another process may own; work on it must stop."""
        self._on_lost = on_lost
        await self._begin()
        self._keeping = asyncio.create_task(self._keep(), name="lease")

    async def _begin(self) -> None:
        """Become an owner, and release the threads of this home's last owner, whose process is dead."""
        before = self._named.read_text(encoding="utf-8") if self._named.exists() else ""
        owner = f"{os.uname().nodename}/{os.getpid()}/{self._entropy.hex(8)}"
        await asyncio.to_thread(replace_whole, self._named, owner.encode())

        def succeed(connection: Any) -> None:
            leases.begin(connection, owner)
            leases.leave(connection, before)
            for agent in self.agents:  # kept permanently, so that its fires wait for a machine that hosts it
                set_meta(connection, f"hosted {agent}", "yes")
            self.cordoned = get_meta(connection, f"{CORDONED} {self.node}")
            notify(connection, [""])

        self.owner, asked = owner, self._clock.monotonic()
        await self._database.run(succeed)
        self._renewed = asked

    async def take(self) -> list[tuple[Lease, list[leases.Row]]]:
        """Take threads with waiting envelopes. Return leases and oldest envelopes, including those of owned threads.

        A process that failed to renew its lease takes no new threads, because their turns would be stopped at once.
        """
        if self._is_fenced():
            return []
        self._taking = True
        try:
            return await self._take_all()
        finally:
            self._taking = False

    async def _take_all(self) -> list[tuple[Lease, list[leases.Row]]]:
        taken: list[tuple[Lease, list[leases.Row]]] = []
        for thread_id in await self._database.read(self._wanted):
            lease = self.held.get(thread_id)
            if lease is None and (self.cordoned or len(self.held) >= MOST_OWNED):
                continue
            try:
                found = await self._database.run(lambda c, t=thread_id, held=lease: self._take(c, t, held))  # type: ignore[misc]
            except Exception:
                self.lose([thread_id], "its claim may have failed")  # later renewals free the thread for a new claim
                if not taken:
                    raise
                break  # handle the envelopes that were claimed before
            if found is not None:
                self.held[thread_id] = found[0]
                taken.append(found)
        return taken

    def _wanted(self, connection: Any) -> list[str]:
        """Return the threads to take and the owned threads with changes; leave threads to other machines."""
        lacking, most, now_s = self.lacking(), MOST_TAKEN + len(self.held), self._clock.monotonic()
        self._left = {one: until_s for one, until_s in list(self._left.items()) if until_s > now_s}
        left = set(self._left)
        if self.cordoned:
            found = leases.wanted(connection, self.owner, leases.MOST_LOOKED_AT, self._elsewhere)
            return [one for one in found if one in self.held]
        if not lacking and not left:
            return leases.wanted(connection, self.owner, most, self._elsewhere)
        found = leases.wanted(connection, self.owner, leases.MOST_LOOKED_AT, self._elsewhere)
        left |= _unfit(connection, [one for one in found if one not in self.held], lacking)
        return [one for one in found if one not in left][:most]

    def _take(self, connection: Any, thread_id: str, held: Lease | None) -> tuple[Lease, list[leases.Row]] | None:
        lease = held or leases.take(connection, thread_id, self.owner)
        if lease is None:
            return None
        found = leases.load(connection, lease, adopt=held is None, besides=self._elsewhere)
        if self._elsewhere and any(row.kind == LOOK for row in found):
            # The request to check may carry the cancellation of a fire for an agent of another machine.
            found += leases.load(connection, lease, adopt=False)
        rows, left = self._sorted_out(connection, found)
        if left:
            leases.put_back(connection, left)
        if held is None and not rows:
            if left:
                leases.free(connection, lease)
            if left or leases.release(connection, lease):
                return None  # other machines begin these fires, or another owner has handled them meanwhile
        return lease, rows

    def _sorted_out(self, connection: Any, rows: list[leases.Row]) -> tuple[list[leases.Row], list[leases.Row]]:
        """Return the rows that this process handles, and the fires that other machines must begin.

        Fires of one task keep their order: if a fire is left to others, later fires of the task are left too. All other
        rows are handled.
        """
        own: list[leases.Row] = []
        left: list[leases.Row] = []
        for row in sorted(rows, key=lambda row: row.number):
            found = self._judged(connection, row) if row.kind == FIRE else row
            behind = row.kind == FIRE and row.key.partition("@")[0] in {one.key.partition("@")[0] for one in left}
            if found is None or (behind and not found.begun):
                left.append(row)
            else:
                own.append(found)
        if not own and any({row.agent, row.reason}.isdisjoint(self._elsewhere) for row in left):
            self._left[left[0].thread_id] = self._clock.monotonic() + LEFT_S
        return own, left

    def _judged(self, connection: Any, fire: leases.Row) -> leases.Row | None:
        """Return a fire that this process handles; None for a fire that another machine must begin.

        A fire with a stored turn or cancel is handled here in any case.
        """
        agent, lacks = fire.agent or triggers.FIRST_AGENT, self.lacks(fire.envelope)
        is_elsewhere = is_worker(agent) and agent not in self.agents
        if not lacks and not is_elsewhere:
            return fire
        if get_keys(connection, [fire.key]) or mail.cancelled_among(connection, [turn_id_of_key(fire.key)]):
            return replace(fire, begun=True)
        if is_elsewhere:
            if not get_meta(connection, f"hosted {agent}"):
                return fire
            self._elsewhere.add(agent)
            return None
        named = agent if is_worker(agent) else triggers.FIRST_AGENT
        if tags := [what for what in lacks if what.startswith(TAG)]:
            self._elsewhere.update(tags)  # the fire waits for a machine that offers the tag
            return None
        return None if any(_can_begin(facts, lacks, named) for facts in self.others()) else fire

    async def let_go(self, thread_id: str) -> bool:
        """Release a thread; return False if it has envelopes that this process must handle."""
        lease = self.held.get(thread_id)
        if lease is not None and not await self._database.run(lambda c: self._release(c, lease)):
            return False
        if self.held.get(thread_id) == lease:
            self.held.pop(thread_id, None)
        return True

    def _release(self, connection: Any, lease: Lease) -> bool:
        if leases.release(connection, lease):
            return True
        if not self._elsewhere and not self._left:
            return False
        found = leases.load(connection, lease, adopt=False)
        leases.put_back(connection, found)
        rows, left = self._sorted_out(connection, found)
        if rows or not left:
            return False
        leases.free(connection, lease)
        notify(connection, [lease.thread_id])
        return True

    async def hand_over(self, thread_id: str) -> None:
        """Release a thread at once and notify others; if the server does not answer, the lease expires later."""
        if (lease := self.held.pop(thread_id, None)) is None:
            return

        def free(connection: Any) -> None:
            leases.free(connection, lease)
            notify(connection, [thread_id])

        await asyncio.gather(self._database.run(free), return_exceptions=True)

    async def _keep(self) -> None:
        """Renew the lease until cancelled, and give up lost threads."""
        while True:
            await self._clock.sleep(RENEW_S)
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(max(FENCE_S - (began - self._renewed), RENEW_S)):
                    epochs, cordoned = await self._database.run(
                        Query(leases.renew, owner=self.owner, key=f"{CORDONED} {self.node}")
                    )
                if epochs is None:
                    self.lose(self.held, "its lease ended")
                    await self._begin()
                else:
                    self.lose([t for t, lease in self.held.items() if epochs.get(t) != lease.epoch], "was taken")
                    await self._give_up({Lease(t, epoch) for t, epoch in epochs.items() if t not in self.held})
                    self._renewed, self.cordoned = began, cordoned
            except Exception as error:  # noqa: BLE001  recorded; without this loop nothing would stop a turn in time
                self._log.emit("lease.trouble", reason=f"{type(error).__name__}: {error}"[:500])
                if self._is_fenced():
                    self.lose(self.held, "it could not be renewed")

    def at_rest(self) -> str:
        """Return since when this machine is cordoned if no turn runs and none can begin; otherwise return nothing."""
        return "" if self.held or self._taking else self.cordoned

    def _is_fenced(self) -> bool:
        """Return whether the last renewal is so old that others may soon own this process's threads."""
        return self._clock.monotonic() - self._renewed >= FENCE_S

    async def _give_up(self, strays: set[Lease]) -> None:
        """Free threads that were already stray at the previous renewal, so that another owner can continue them."""
        for lease in strays & self._strays:
            await self._database.run(lambda c, lease=lease: leases.free(c, lease))  # type: ignore[misc]
        self._strays = strays

    async def leave(self) -> None:
        """Release all threads and notify others, so that they can continue at once."""
        if self._keeping is not None:
            self._keeping.cancel()
        # If the server does not answer, the lease expires without a release.
        await asyncio.gather(self._database.run(self._leave), return_exceptions=True)
        self.held.clear()

    def _leave(self, connection: Any) -> None:
        leases.leave(connection, self.owner)
        notify(connection, [""])

    def lose(self, threads: Collection[str], why: str) -> None:
        """Give up threads that others may own."""
        for thread_id in list(threads):
            if (lease := self.held.pop(thread_id, None)) is not None:
                self._log.emit("lease.lost", thread_id=thread_id, epoch=lease.epoch, reason=why)
                self._on_lost(thread_id)


class SharedMailboxes(Mailboxes):
    """The inboxes of the hosted agents as rows of the shared store, in addition to this machine's folders."""

    is_shared = True

    def __init__(
        self,
        *where: Any,
        database: Database,
        ownership: Ownership,
        read_fire: ReadFire,
        read_again: ReadFire,
        on_taken: OnTaken,
        listening: Callable[[], Coroutine[Any, Any, None]],
        works: bool = True,
        **how: Any,
    ) -> None:
        """Take the arguments of `Mailboxes`, and the store. A process that runs no turns owns no threads and only puts.

        `read_fire` reads a fire's request; `read_again` reads a request that has already begun. `on_taken` is awaited
        for each taken thread. `listening` reports writes of other processes until cancelled.
        """
        super().__init__(*where, **how)
        self._database, self.ownership = database, ownership
        self._read_fire, self._read_again = read_fire, read_again
        self._on_taken, self._listening = on_taken, listening
        self._listener: asyncio.Task[None] | None = None
        self._works = works

    async def put(self, items: Sequence[triggers.EncodedTrigger]) -> list[Put | TurnkeeperError]:
        """Put triggers' envelopes, for hosted agents and for agents in terminals, in one transaction."""
        rows = [_row_of(item) for item in items if item.header.agent in self.agents]
        others = [item.encoded for item in items if self._in_terminal(item.header.agent)]
        at = self._clock.now()

        def work(connection: Connection) -> tuple[list[bool], list[bool]]:
            return handover.put_all(connection, rows, at), inboxes.put_envelopes(connection, others, at)

        hosted, elsewhere = map(iter, await self._database.run(work) if rows or others else ((), ()))
        fresh = {True: hosted, False: elsewhere}
        return [
            Put(name=item.header.key, fresh=next(fresh[agent in self.agents]))
            if (agent := item.header.agent) in self.agents or self._in_terminal(agent)
            else _not_hosted(agent)
            for item in items
        ]

    def _in_terminal(self, agent: str) -> bool:
        """Return whether an agent runs in a terminal, and is not a peer or a worker that other machines may host."""
        return agent not in self.agents and not is_worker(agent) and "@" not in agent

    async def post(self, envelope: Envelope) -> None:
        """Put an envelope that carries no trigger. Raises the error that refuses the envelope."""
        if not self._in_terminal(envelope.to):
            await super().post(envelope)
            return
        own, at = encoded(replace(envelope, idempotency_key=envelope.idempotency_key or envelope.id)), self._clock.now()
        await self._database.run(lambda c: inboxes.put_envelopes(c, [own], at))

    async def has_inbox(self, agent: str) -> bool:
        """Return whether anything was ever put for an agent, or read there."""
        if not self._in_terminal(agent):
            return await super().has_inbox(agent)
        return await self._database.read(lambda c: inboxes.has_inbox(c, agent))

    async def lay_out(self, delivery: Delivery) -> None:
        """Move a fire from its thread into the inbox of its agent in a terminal, and follow it. Raises Fenced."""
        lease, envelope, at = delivery.lease, delivery.claimed.envelope, self._clock.now()
        assert lease is not None
        header = triggers.header_of(triggers.from_envelope(envelope))

        def work(connection: Connection) -> None:
            if not leases.archive(connection, lease, delivery.number):
                return  # an earlier call moved the fire, but its answer was lost; the fire may have been read since
            inboxes.put_envelopes(connection, [encoded(envelope)], at)
            if triggers.is_fire(header.key):
                mail.add_terminal_delivery(connection, header, header.key, at)

        await self._database.run(work)

    async def envelope_states(self, agent: str, wanted: Mapping[str, str]) -> dict[str, EnvelopeState]:
        """Return the states of envelopes for an agent in a terminal, by key."""
        found = await self._database.read(lambda c: inboxes.envelope_states(c, agent, wanted.keys()))
        return {key: EnvelopeState(found.get(key, EnvelopeState.GONE)) for key in wanted}

    async def was_received(self, _name: str) -> bool:
        """Return False, because the row of a read envelope stays until its delivery is settled."""
        return False

    async def withdraw(self, agent: str, name: str, *, claimed: bool = False) -> bool:
        """Remove an unclaimed envelope, or with `claimed` any envelope; return whether it existed."""
        return await self._database.run(lambda c: inboxes.take_back(c, agent, name, claimed=claimed))

    def remember(self, header: triggers.TriggerHeader) -> None:
        """Do nothing, because the fire is a row."""

    async def find(self, keys: Collection[str]) -> Mapping[str, triggers.TriggerHeader]:
        """Return the headers of the waiting triggers with these keys, for any machine."""
        rows = await self._database.read(lambda c: leases.known(c, keys))
        fits = [replace(row, begun=True) for row in rows if row.kind != LOOK]  # including fires that others must begin
        found = {row.key: triggers.from_envelope(self._claimed(row)[0].envelope) for row in fits}
        return {key: triggers.header_of(trigger) for key, trigger in found.items()}

    async def of_turn(self, turn_id: str) -> triggers.TriggerHeader | None:
        """Return the header of the waiting trigger of this future turn, for any machine."""
        keys = await self._database.read(leases.UNHANDLED.values)
        found = await self.find([key for key in keys if turn_id_of_key(key) == turn_id])
        return next(iter(found.values()), None)

    async def claim(self, limit: int) -> list[Delivery]:
        """Claim envelopes of threads without an owner and of this process's threads, in order.

        If the start of a thread fails, give up the thread. A renewal frees the thread, and a process takes the thread
        again with its claimed envelopes. Otherwise the envelopes would wait as long as this process runs.
        """
        found, taken = await self.ownership.take() if self._works else [], []
        for lease, rows in found:
            try:
                await self._on_taken(lease.thread_id)
            except Exception as error:  # noqa: BLE001  recorded; the other threads were claimed as well
                self.ownership.lose([lease.thread_id], f"it could not be begun: {type(error).__name__}: {error}"[:500])
            else:
                taken += [self._delivery(row, lease) for row in rows]
        try:
            return [*await super().claim(limit), *taken]
        except Exception:
            self.ownership.lose([lease.thread_id for lease, _ in found], "this machine's inboxes cannot be read")
            raise

    async def archive(self, delivery: Delivery) -> None:
        """Remove a handled envelope. Raises Fenced."""
        if (lease := delivery.lease) is None:
            await super().archive(delivery)
        else:
            await self._database.run(lambda c: leases.archive(c, lease, delivery.number))

    async def quarantine(self, delivery: Delivery, reason: str) -> None:
        """Quarantine an envelope that cannot be read, with the reason. Raises Fenced."""
        if (lease := delivery.lease) is None:
            await super().quarantine(delivery, reason)
        else:
            await self._database.run(lambda c: leases.quarantine(c, lease, delivery.number, reason))

    def cordoned(self) -> str:
        """Return since when this machine has taken no new turns; empty if it takes new turns."""
        return self.ownership.cordoned

    def lease_of(self, thread_id: str) -> Lease | None:
        """Return this process's lease of a thread; None if it does not own the thread."""
        return self.ownership.held.get(thread_id)

    def owns(self, thread_id: str) -> bool:
        return thread_id in self.ownership.held

    async def begin(self, on_lost: Callable[[str], None]) -> list[tuple[triggers.Trigger, str]]:
        """Open the inboxes of this machine, and become an owner of threads."""
        await super().begin(on_lost)
        if self._works:
            await self.ownership.begin(on_lost)
        self._listener = asyncio.create_task(self._listening(), name="listen")
        unrecorded = await self._database.read(inboxes.unrecorded_fires)
        return [(triggers.from_envelope(decode(data)), key) for key, data in unrecorded]

    async def leave(self) -> None:
        """Release all threads, so that others can continue at once."""
        if self._listener is not None:
            self._listener.cancel()
        await self.ownership.leave()

    async def hand_over(self, thread_id: str) -> None:
        """Release a thread at once, even if envelopes wait, because this process starts no more work on it."""
        await self.ownership.hand_over(thread_id)

    def lost(self, lease: Lease) -> None:
        """Give up a thread that has another owner; keep the thread if this process has taken it again since."""
        if self.lease_of(lease.thread_id) == lease:
            self.ownership.lose([lease.thread_id], "another owner has the thread")

    async def let_go(self, thread_id: str) -> bool:
        """Release a thread without waiting envelopes; return False if an envelope waits for it."""
        return await self.ownership.let_go(thread_id)

    def _delivery(self, row: leases.Row, lease: Lease) -> Delivery:
        own: dict[str, Any] = {"agent": row.agent, "lease": lease, "number": row.number}
        if row.kind != LOOK:
            claimed, field = self._claimed(row)
            elsewhere = not claimed.fault and self._in_terminal(row.agent)
            return Delivery(claimed=claimed, field=field, elsewhere=elsewhere, **own)
        turn_id = json.loads(row.envelope or b"{}").get("cancel", "")
        wish = Incoming(source="cancel", turn_id=turn_id) if turn_id else Incoming(source="recovery")
        return Delivery(claimed=Claimed(name=row.key, envelope=self._blank(row)), wish=wish, **own)

    def _claimed(self, row: leases.Row) -> tuple[Claimed, str]:
        """Return the envelope in a row, and the invalid field of a fire that no process can begin."""
        try:
            return Claimed(name=row.key, envelope=self._envelope(row)), ""
        except Exception as error:  # noqa: BLE001  any fault quarantines this envelope alone
            # If the agent is not hosted here, the fire is valid, because another machine may host the agent.
            field = error.where if isinstance(error, TurnkeeperError) and error.where != _AGENT else ""
            return Claimed(name=row.key, envelope=self._blank(row), fault=str(error) or type(error).__name__), field

    def _envelope(self, row: leases.Row) -> Envelope:
        if row.kind != FIRE:
            return decode(row.envelope)
        trigger = (self._read_again if row.begun else self._read_fire)(row.envelope)
        if not row.begun and trigger.agent not in self.agents and not self._in_terminal(trigger.agent):
            raise _not_hosted(trigger.agent)
        return triggers.to_envelope(trigger, envelope_id=row.key, at=self._clock.now())

    def _blank(self, row: leases.Row) -> Envelope:
        """Return an envelope made only from a row's columns."""
        named: dict[str, Any] = {"idempotency_key": row.key, "thread": row.thread_id, "to": row.agent}
        return Envelope(id=row.key, kind="fire", sender="task-runner", text="", at=self._clock.now(), **named)


def is_worker(agent: str) -> bool:
    """Return whether a name belongs to an agent that machines host."""
    return re.fullmatch(r"agent[0-9]+", agent, re.ASCII) is not None


def turn_id_of_key(key: str) -> str:
    """Return the id of the turn of this key.

    >>> turn_id_of_key("fire:task-00000001@x:1")
    'turn-8ddc61531901bed8'
    """
    source, _, rest = key.partition(":")
    if source == "fire":
        fire_id, _, attempt = rest.rpartition(":")
        return turn_id_of(fire_id, int(attempt)) if attempt.isdecimal() else ""
    return turn_id_of("agent", key) if source == "agent" else turn_id_of("message", rest)


def _row_of(item: triggers.EncodedTrigger) -> dict[str, Any]:
    header = item.header
    named = {"key": header.key, "thread_id": header.thread_id, "agent": header.agent}
    return {**named, "kind": "envelope", "envelope": item.encoded.data}


def _not_hosted(agent: str) -> TurnkeeperError:
    what = f"{agent} is neither hosted here nor an agent in a terminal"
    return InvalidInput(what, where=_AGENT)


def _can_begin(facts: Mapping[str, str], needed: Iterable[str], agent: str) -> bool:
    """Return True if a runtime with these facts hosts the agent of a fire and has everything that the fire needs."""
    has_all = not any(facts.get(what, UNUSABLE).startswith(UNUSABLE) for what in needed)
    return has_all and agent in facts.get(AGENTS, agent).split()


def _unfit(connection: Connection, threads_: Collection[str], lacking: Collection[str]) -> set[str]:
    """Return the threads with an open turn that began with one of these digests of its category or graph."""
    rows = leases.OPEN_TURNS.rows(connection, ids=listed(sorted(threads_)))
    return {thread for thread, grant, graph in rows if {digest(json.loads(grant)), graph} & set(lacking)}
