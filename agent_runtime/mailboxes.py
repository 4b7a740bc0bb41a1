"""The agents' inboxes, and the one thread that touches them."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from agent_runtime.triggers import Trigger, from_envelope
from turnkeeper.bus.envelope import LARGEST_BYTES, Envelope, decode
from turnkeeper.bus.inbox import Claimed, Inbox
from turnkeeper.errors import Corrupt, InvalidInput, TurnkeeperError
from turnkeeper.files import Files

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """An envelope that was claimed, and whose."""

    agent: str
    claimed: Claimed


@dataclass(frozen=True, kw_only=True)
class Lying:
    """What is known of a trigger whose envelope waits, or is claimed and not yet archived.

    Attributes:
        digest: of the trigger.
        turn_id: the turn it will be, or is.
        thread_id: its thread.
        channel: its channel.
        agent: whose inbox.
        fire_id: of a fire; empty for a message.
        attempt: of a fire.
        task_name: of a fire.
    """

    digest: str
    turn_id: str
    thread_id: str
    channel: str
    agent: str
    fire_id: str
    attempt: int
    task_name: str


class Mailboxes:
    """One inbox an agent. File work runs, one piece after the other, in a thread of its own.

    What lies in the inboxes is remembered by key from the moment it is on disk until it is archived.
    """

    def __init__(self, inboxes: Mapping[str, Inbox], files: Files) -> None:
        self._inboxes = inboxes
        self._files = files
        self._lying: dict[str, Lying] = {}
        self._archiving: list[tuple[Delivery, asyncio.Future[None]]] = []
        self._archiver: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inbox")

    async def open(self) -> None:
        """Learn what lies in the inboxes already, and see to it that it stays there."""
        self._lying = await self._run(self._read_all)

    @property
    def agents(self) -> Collection[str]:
        """The agents there are."""
        return self._inboxes.keys()

    def known(self, key: str) -> Lying | None:
        """Return what is known of the trigger with this key, if its envelope lies in an inbox."""
        return self._lying.get(key)

    def lying(self) -> Iterator[Lying]:
        """Yield all that lies in the inboxes."""
        return iter(self._lying.values())

    async def put(self, items: Sequence[tuple[Trigger, Envelope]]) -> list[TurnkeeperError | None]:
        """Put triggers' envelopes; when this returns each is on disk, or the error stands in its place."""
        answers = await self._run(lambda: self._put([envelope for _, envelope in items]))
        for (trigger, _), failure in zip(items, answers, strict=True):
            if failure is None:
                self._lying[trigger.key] = _lying(trigger)
        return answers

    async def claim(self, limit: int) -> list[Delivery]:
        """Take up to `limit` envelopes that wait, agent by agent, each agent's in order. Raises Exhausted, OSError."""
        return await self._run(lambda: self._claim(limit))

    async def adopt(self) -> list[Delivery]:
        """Return what an earlier process claimed and never archived."""
        return await self._run(
            lambda: [
                Delivery(agent=agent, claimed=item) for agent, inbox in self._inboxes.items() for item in inbox.adopt()
            ]
        )

    async def archive(self, delivery: Delivery) -> None:
        """Archive what was dealt with; what comes meanwhile shares one sync. Raises Exhausted: do it again."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._archiving.append((delivery, done))
        if self._archiver is None or self._archiver.done():
            self._archiver = asyncio.create_task(self._archive_all(), name="archive")
        await done
        self._lying.pop(delivery.claimed.envelope.idempotency_key, None)

    async def quarantine(self, delivery: Delivery, reason: str) -> None:
        """Move aside what nobody can read."""
        await self._run(lambda: self._inboxes[delivery.agent].quarantine(delivery.claimed.name, reason))
        self._lying.pop(delivery.claimed.envelope.idempotency_key, None)

    def close(self) -> None:
        """Finish what is under way."""
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _archive_all(self) -> None:
        while self._archiving:
            group, self._archiving = self._archiving, []
            try:
                await self._run(lambda group=group: self._archive([delivery for delivery, _ in group]))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001  each of the group's callers gets it as its answer
                failure: Exception | None = error
            else:
                failure = None
            for _, done in group:
                if not done.done():
                    done.set_result(None) if failure is None else done.set_exception(failure)

    def _archive(self, deliveries: Sequence[Delivery]) -> None:
        for agent, inbox in self._inboxes.items():
            inbox.archive_all([delivery.claimed for delivery in deliveries if delivery.agent == agent])

    def _put(self, envelopes: Sequence[Envelope]) -> list[TurnkeeperError | None]:
        answers: dict[int, TurnkeeperError | None] = {}
        for agent, inbox in self._inboxes.items():
            own = [envelope for envelope in envelopes if envelope.to == agent]
            for envelope, answer in zip(own, inbox.put_each(own) if own else [], strict=True):
                answers[id(envelope)] = answer if isinstance(answer, TurnkeeperError) else None
        return [answers[id(envelope)] for envelope in envelopes]

    def _claim(self, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for agent, inbox in self._inboxes.items():
            if left := limit - len(taken):
                taken += [Delivery(agent=agent, claimed=item) for item in inbox.claim(left)]
        return taken

    def _read_all(self) -> dict[str, Lying]:
        found: dict[str, Lying] = {}
        for inbox in self._inboxes.values():
            for name in ("claimed", "inbox"):
                folder = inbox.folder / name
                for file in self._files.names(folder):
                    # What cannot be read is quarantined, with its reason, when it is claimed.
                    with contextlib.suppress(InvalidInput, Corrupt, FileNotFoundError):
                        trigger = from_envelope(decode(self._files.read(folder / file, LARGEST_BYTES)))
                        found[trigger.key] = _lying(trigger)
            # A crash may have come between a link and its sync; nobody is told "duplicate" of what is not on disk.
            self._files.sync_folder(inbox.folder / "inbox")
        return found


def _lying(trigger: Trigger) -> Lying:
    return Lying(
        digest=trigger.digest,
        turn_id=trigger.turn_id,
        thread_id=trigger.thread_id,
        channel=trigger.channel,
        agent=trigger.agent,
        fire_id=trigger.fire_id,
        attempt=trigger.attempt,
        task_name=trigger.task_name,
    )
