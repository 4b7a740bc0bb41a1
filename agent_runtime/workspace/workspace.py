"""The workspace that tools act on and authors decide about, over the runtime's store.

A turn's methods take a `Call` and check its scopes themselves, whatever was checked
before; each of its writes happens once however often the call is run. An author's methods take no context: they are an
author's acts.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, desc, func, select

from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import require
from agent_runtime.store.idempotency import Call, Outcome, once, refuse_ended
from agent_runtime.store.lease import check_lease
from agent_runtime.store.schema import messages, turns
from agent_runtime.store.workspace_schema import candidates
from agent_runtime.workspace import pages
from agent_runtime.workspace.authoring import Authoring
from agent_runtime.workspace.deviations import of_candidate
from agent_runtime.workspace.memory.entries import Recollection
from agent_runtime.workspace.memory.memory import Remembering
from agent_runtime.workspace.model import (
    SUMMARY,
    Acceptance,
    Author,
    Candidate,
    Heard,
    Hearing,
    Hit,
    Page,
    PageDraft,
    Rejection,
    SummaryDraft,
)
from agent_runtime.workspace.review import Reviewing
from agent_runtime.workspace.submit import submit
from agent_runtime.workspace.web.page import Fetched, WebReader
from turnkeeper.clock import Clock
from turnkeeper.entropy import Entropy
from turnkeeper.storage.database import Database
from turnkeeper.times import from_us

MOST_MESSAGES = 200


READING_BUDGET = 16_000  # bytes of text that one reading gives


def hear(connection: Connection, context: TurnContext, channel: str, *, whole: bool) -> Hearing:
    """Return the newest messages of a channel that fit the budget, oldest first: what author and agents said.

    Args:
        connection: an open transaction.
        context: the turn that reads; its own messages are left out.
        channel: whose conversation.
        whole: from the start; otherwise what is new since this task last proposed a summary there (an author's turn:
            since anybody did), without turns that proposed one: two tasks must not go on summarising each other.
    """
    since_us = None if whole else _last_summary(connection, context, channel)
    query = (
        select(messages.c.turn_id, messages.c.role, messages.c.text, messages.c.at_us)
        .join(turns, turns.c.turn_id == messages.c.turn_id)
        .where(turns.c.channel == channel, turns.c.visible, turns.c.turn_id != context.turn_id)
        .where(messages.c.role.in_(["author", "agent"]), messages.c.text != "")
        .order_by(desc(messages.c.at_us), desc(turns.c.number), desc(messages.c.position))
        .limit(MOST_MESSAGES + 1)
    )
    if not whole:
        query = query.where(turns.c.turn_id.not_in(_summaries(channel).with_only_columns(candidates.c.turn_id)))
    if since_us is not None:
        query = query.where(messages.c.at_us > since_us)
    newest = [
        Heard(turn_id=row.turn_id, role=row.role, text=row.text, at=from_us(row.at_us))
        for row in connection.execute(query)
    ]
    kept = _fitting(newest[:MOST_MESSAGES])
    since = None if since_us is None else from_us(since_us)
    return Hearing(channel=channel, since=since, messages=tuple(reversed(kept)), left_out=len(newest) - len(kept))


def _last_summary(connection: Connection, context: TurnContext, channel: str) -> int | None:
    """Find the last summary of another turn: a turn that is run again hears what it heard the first time."""
    query = _summaries(channel).where(candidates.c.turn_id != context.turn_id)
    if context.task_name:
        query = query.where(candidates.c.task_name == context.task_name)
    return connection.execute(query.with_only_columns(func.max(candidates.c.created_at_us))).scalar()


def _summaries(channel: str) -> Select[Any]:
    return select(candidates).where(candidates.c.channel == channel, candidates.c.kind == SUMMARY)


def _fitting(newest: Sequence[Heard]) -> list[Heard]:
    """Return the leading messages that fit the budget together."""
    kept, room = list[Heard](), READING_BUDGET
    for heard in newest:
        room -= len(heard.text.encode())
        if room < 0:
            break
        kept.append(heard)
    return kept


OnEffect = Callable[[str, Mapping[str, Any]], None]
T = TypeVar("T")
MOST_HITS = 20
_WORDS = {"title", "key", "forgotten"}  # of a write's result: no event tells them


class Workspace:
    """Pages, candidates, memory and what was said, behind the scopes of whoever asks."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        entropy: Entropy,
        on_effect: OnEffect,
        web: WebReader | None = None,
        *,
        epoch: int | None = None,
    ) -> None:
        """Take the store.

        Args:
            database: the runtime's, with the tables of `agent_runtime.store.workspace_schema`.
            clock: for the instants of writes.
            entropy: for the ids of candidates and entries.
            on_effect: told of every write once it is on disk: an event's name and its fields, never any text.
            web: reads public pages, unless a test passes another.
            epoch: of the lease under which this process writes; None where nobody else may own the store.
        """
        self._database = database
        self._clock = clock
        self._entropy = entropy
        self._on_effect = on_effect
        self._web = web or WebReader(clock)
        self._epoch = epoch
        self.memory = Remembering(self, clock, entropy)
        self.review = Reviewing(self, clock)
        self.authors = Authoring(self, clock)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a reading function in a transaction."""
        return await self._database.run(work)

    async def read_page(self, call: Call, page_id: str) -> Page:
        """Return a page. Raises NotFound, Denied."""
        require("workspace.read", "read", {}, call.context)
        return await self._database.run(lambda connection: pages.get_page(connection, page_id))

    async def search(self, call: Call, query: str, limit: int) -> tuple[list[Hit], bool]:
        """Return the best pages for a query, and whether there were more than could be ranked. Raises Denied."""
        require("workspace.search", "read", {}, call.context)
        most = max(1, min(limit, MOST_HITS))
        return await self._database.run(lambda connection: pages.search_pages(connection, query, limit=most))

    async def hear(self, call: Call, channel: str, *, whole: bool) -> Hearing:
        """Return what was said in a channel: since the last summary, or with `whole` from the start. Raises Denied."""
        require("conversation.read", "read", {"channel": channel}, call.context)
        of = channel or call.context.channel
        return await self._database.run(lambda connection: hear(connection, call.context, of, whole=whole))

    async def recall(self, call: Call, tier: str, channel: str) -> Recollection:
        """Return the newest entries of a memory tier, within the reading budget. Raises Denied, InvalidInput."""
        return await self.memory.read(call, tier, channel)

    async def remember(self, call: Call, *, tier: str, text: str, key: str, channel: str) -> Outcome:
        """Write a memory entry once. Raises Denied, InvalidInput, Exhausted."""
        return await self.memory.put(call, tier=tier, text=text, key=key, channel=channel)

    async def propose(self, call: Call, draft: PageDraft | SummaryDraft) -> Outcome:
        """Submit a draft as this turn's candidate, once. Raises Denied, InvalidInput."""
        context, now, new_id = call.context, self._clock.now(), f"c-{self._entropy.hex(12)}"
        page = isinstance(draft, PageDraft)
        scope = "page.propose" if page else "summary.propose"
        reached = {"sources": draft.sources} if isinstance(draft, PageDraft) else {"channel": draft.channel}
        require(scope, "write", reached, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            made = submit(connection, draft, context, at=now, new_id=new_id)
            assert isinstance(made, Candidate), "an agent's write is a candidate"
            return {
                "candidate_id": made.candidate_id,
                "kind": made.kind,
                "channel": made.channel,
                "title": made.title,
                "origin": made.origin,
                "lifecycle": made.lifecycle,
                "deviations": of_candidate(connection, new_id),
            }

        return await self.once(call, scope, now, write)

    async def fetch(self, call: Call, url: str) -> Fetched:
        """Return a page of the public web. Raises Denied, InvalidInput, NotFound, Unreachable.

        The category is asked for each host on the way: a redirect reaches no host that the turn must not reach.
        """
        context = call.context
        require("web.fetch", "external-read", {"url": url}, context)
        return await self._web.fetch(
            url, lambda target: require("web.fetch", "external-read", {"url": target.url}, context)
        )

    async def list_pages(self, *, tag: str = "") -> list[Page]:
        """Return the workspace's pages by id."""
        return await self._database.run(lambda connection: pages.list_pages(connection, tag=tag))

    async def get_page(self, page_id: str) -> Page:
        """Return a page. Raises NotFound."""
        return await self._database.run(lambda connection: pages.get_page(connection, page_id))

    async def put_page(self, draft: PageDraft, *, author: Author | None = None) -> Page:
        """Write an author's page: authored, canonical. Raises InvalidInput."""
        return (await self.authors.put(draft, author=author)).page

    async def list_candidates(self, *, channel: str = "", include_decided: bool = False) -> list[Candidate]:
        """Return candidates, newest first."""
        return await self._database.run(
            lambda connection: pages.list_candidates(connection, channel=channel, include_decided=include_decided)
        )

    async def decide_candidate(
        self, candidate_id: str, *, accept: bool, note: str = "", author: Author | None = None
    ) -> Candidate:
        """Take an author's decision about a candidate. Raises NotFound, Conflict, InvalidInput."""
        by, now = author or Author(), self._clock.now()
        decision = (Acceptance if accept else Rejection)(candidate_id=candidate_id, note=note)
        made = await self.write(lambda connection: submit(connection, decision, by, at=now, new_id=""))
        assert isinstance(made, Candidate), "a decision gives the candidate"
        fields = {"candidate_id": made.candidate_id, "turn_id": made.turn_id, "channel": made.channel}
        self._on_effect("candidate.decided", fields | {"origin": made.origin, "lifecycle": made.lifecycle})
        return made

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a writing function in a transaction, under this process's lease."""
        return await self._database.run(lambda connection: self._leased(connection, work))

    def submit(self, work: Callable[[Connection], T]) -> "Future[T]":
        """As `write`, for a caller that has no loop."""
        return self._database.submit(lambda connection: self._leased(connection, work))

    def _leased(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        if self._epoch is not None:
            check_lease(connection, self._epoch)
        return work(connection)

    async def once(
        self, call: Call, scope: str, at: datetime, write: Callable[[Connection], Mapping[str, Any]]
    ) -> Outcome:
        """Run a turn's write once, however often its call is run; tell of it. Raises Denied after the turn's end."""

        def work(connection: Connection) -> Outcome:
            return once(connection, call, scope, at, refuse_ended, lambda: write(connection))

        outcome = await self.write(work)
        self.wrote(call, scope, outcome)
        return outcome

    def wrote(self, call: Call, scope: str, outcome: Outcome) -> None:
        """Tell of a turn's write that is on disk."""
        turn = call.context
        told = {"turn_id": turn.turn_id, "thread_id": turn.thread_id, "category": turn.category.name, "scope": scope}
        named = {key: value for key, value in outcome.result.items() if key not in _WORDS}
        self._on_effect("agent.wrote", told | named | {"repeated": outcome.repeated})

    def tell(self, event: str, fields: Mapping[str, Any]) -> None:
        """Tell of a write that is on disk."""
        self._on_effect(event, fields)
