"""The workspace operations of turns and of the author's commands.

Each method of a turn takes a `Call` and always checks the turn's scopes itself. Each write happens once, even if its
call is run again. Memory is in `memory`; the author's methods, in `Authoring`, take no turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, desc, func, select

from agent_runtime.model.turn import TurnContext
from agent_runtime.permissions.judge import require
from agent_runtime.store.idempotency import PAGES, Call, OnEffect, Outcome, Transactions
from agent_runtime.store.leases import Right
from agent_runtime.store.schema import candidates, messages, turns
from agent_runtime.store.schema import pages as page_table
from agent_runtime.workspace import model, pages, revalidation
from agent_runtime.workspace.deviations import Deviation, DeviationDraft, Resolution, of_candidate
from agent_runtime.workspace.memory import Memory, fitting
from agent_runtime.workspace.submit import submit
from turnkeeper.clock import Clock
from turnkeeper.config.surfaces import offered
from turnkeeper.entropy import Entropy
from turnkeeper.errors import InvalidInput
from turnkeeper.storage.database import Database
from turnkeeper.times import from_us

MOST_IMPORTED = 500  # the most pages in one transaction


@dataclass(frozen=True, kw_only=True)
class Put:
    """The result of writing an author's page.

    Attributes:
        outcome: new, changed, or unchanged if an import found the same page.
        queued: the number of derived pages that wait for re-validation because of the page.
    """

    page: model.Page
    outcome: str
    queued: int


class _Undone(Exception):
    """Not an error: it carries the results of a dry run out of the transaction that the dry run rolls back."""

    def __init__(self, puts: Sequence[Put]) -> None:
        super().__init__()
        self.puts = puts


class Authoring:
    """The author's operations, for commands."""

    def __init__(self, transactions: Transactions, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock

    async def put(self, draft: model.PageDraft, *, author: model.Author | None = None) -> Put:
        """Write a page: authored and canonical, or a draft. Raises InvalidInput, NotFound, Conflict."""
        by, now = author or model.Author(), self._clock.now()

        done = await self._transactions.write(lambda connection: _put(connection, draft, by, now))
        self._emit(done)
        return done

    async def import_pages(self, drafts: Sequence[model.PageDraft], *, dry_run: bool = False) -> Sequence[Put]:
        """Write the pages of an import, all or none, with origin imported; skip pages that already exist unchanged.

        Args:
            drafts: the pages; the sources of each come before it or exist in the workspace.
            dry_run: return the result for each page without changing anything.

        Raises:
            InvalidInput, NotFound, Conflict: the first draft that cannot be written has this error.
        """
        if len(drafts) > MOST_IMPORTED:
            raise InvalidInput(f"{len(drafts)} pages; the limit for one import is {MOST_IMPORTED}", where="pages")
        by, now = model.Author(imports=True), self._clock.now()

        def put_one(connection: Connection, draft: model.PageDraft) -> Put:
            if dry_run:  # earlier pages of the import may not exist yet
                known = select(page_table.c.page_id).where(page_table.c.page_id.in_(draft.sources))
                there = set(connection.execute(known).scalars())
                kept = tuple(source for source in draft.sources if model.is_address(source) or source in there)
                draft = replace(draft, sources=kept)
            before = _same(connection, model.check_page(draft))
            if before is not None:
                return Put(page=before, outcome="unchanged", queued=0)
            return _put(connection, draft, by, now)

        def work(connection: Connection) -> list[Put]:
            puts = [put_one(connection, draft) for draft in drafts]
            if dry_run:
                raise _Undone(puts)
            return puts

        try:
            done = await self._transactions.write(work)
        except _Undone as would:
            return would.puts
        for one in done:
            if one.outcome != "unchanged":
                self._emit(one)
        return done

    async def attach(self, draft: pages.AttachmentDraft, *, author: model.Author | None = None) -> pages.Attachment:
        """Attach a file to a page. Raises InvalidInput, NotFound, Exhausted."""
        by, now = author or model.Author(), self._clock.now()
        made = await self._transactions.write(lambda connection: submit(connection, draft, by, at=now, new_id=""))
        assert isinstance(made, pages.Attachment), "submit must return the attachment"
        fields = {"page_id": made.page_id, "size": made.size, "sha256": made.sha256}
        self._transactions.emit("attachment.put", fields | {"origin": made.origin, "lifecycle": made.lifecycle})
        return made

    async def resolve(self, resolution: Resolution, via: str = "") -> Deviation:
        """Close a deviation, and store the decision's surface. Raises NotFound, Conflict, InvalidInput."""
        by, now = model.Author(via=via), self._clock.now()
        closed = await self._transactions.write(
            lambda connection: submit(connection, resolution, by, at=now, new_id="")
        )
        assert isinstance(closed, Deviation), "submit must return the deviation"
        fields = {"deviation_id": closed.deviation_id, "page_id": closed.page_id, "turn_id": closed.turn_id}
        self._transactions.emit("deviation.resolved", fields | {"origin": closed.origin, "lifecycle": closed.lifecycle})
        return closed

    async def decide(self, candidate_id: str, *, accept: bool, note: str = "", via: str = "") -> model.Candidate:
        """Accept or reject a candidate, and store the decision's surface. Raises NotFound, Conflict, InvalidInput."""
        by, now = model.Author(via=via), self._clock.now()
        decision = (model.Acceptance if accept else model.Rejection)(candidate_id=candidate_id, note=note)
        made = await self._transactions.write(lambda connection: submit(connection, decision, by, at=now, new_id=""))
        assert isinstance(made, model.Candidate), "submit must return the candidate"
        fields = {"candidate_id": made.candidate_id, "turn_id": made.turn_id, "channel": made.channel}
        self._transactions.emit("candidate.decided", fields | {"origin": made.origin, "lifecycle": made.lifecycle})
        return made

    def _emit(self, done: Put) -> None:
        page = done.page
        fields = {"page_id": page.page_id, "version": page.version, "queued": done.queued}
        self._transactions.emit("page.put", fields | {"origin": page.origin, "lifecycle": page.lifecycle})


def _put(connection: Connection, draft: model.PageDraft, by: model.Author, at: datetime) -> Put:
    known = connection.execute(select(page_table.c.version).where(page_table.c.page_id == draft.page_id)).one_or_none()
    page = submit(connection, draft, by, at=at, new_id="")
    assert isinstance(page, model.Page), "submit must return the page"
    queued = revalidation.count_waiting(connection, cause=page.page_id)
    return Put(page=page, outcome="changed" if known else "new", queued=queued)


def _same(connection: Connection, draft: model.PageDraft) -> model.Page | None:
    """Return the stored page if the draft would not change it, else None."""
    row = connection.execute(select(page_table).where(page_table.c.page_id == draft.page_id)).mappings().one_or_none()
    if row is None:
        return None
    page = pages.to_page(row)
    linked = {source.rpartition("@")[0] or source for source in revalidation.links_of(connection, page.page_id)}
    links = {source for source in draft.sources if source != page.page_id}
    same = (page.title, page.body, page.tags, page.lifecycle) == (draft.title, draft.body, draft.tags, "canonical")
    return page if same and (not links or links == linked) else None


MOST_MESSAGES = 200
READING_BUDGET = 16_000  # bytes of text in one reading
MOST_HITS = 20
MOST_ITEMS = 5  # items in one reading of the re-validation queue


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A page with its sources, derived pages and attachments.

    Attributes:
        sources: its current sources: `page@version`, or an address.
        derived: pages derived from it, directly or through others; the nearest 1,000.
    """

    page: model.Page
    sources: tuple[str, ...]
    derived: tuple[str, ...]
    attachments: tuple[pages.Attachment, ...]


class Workspace(Transactions):
    """The workspace operations of turns.

    Args:
        database: see `Transactions`.
        on_effect: see `Transactions`.
        web: reads public pages; a test may pass another reader.
        right: see `Transactions`.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        entropy: Entropy,
        on_effect: OnEffect,
        web: Any = None,
        *,
        right: Right | None = None,
    ) -> None:
        super().__init__(database, on_effect, right=right)
        self._clock = clock
        self._entropy = entropy
        self._web = web or offered("web", clock)
        self.memory = Memory(self, clock, entropy)
        self.authors = Authoring(self, clock)

    async def read_page(self, call: Call, page_id: str) -> model.Page:
        """Return a page, named by its id or its title. Raises NotFound, Conflict, Denied."""
        require("workspace.read", "read", {}, call.context)
        return await self.read(lambda connection: pages.find_page(connection, page_id))

    async def search(self, call: Call, query: str, limit: int) -> tuple[list[model.Hit], bool]:
        """Return the best pages for a query, and whether more pages match than can be ranked. Raises Denied."""
        require("workspace.search", "read", {}, call.context)
        most = max(1, min(limit, MOST_HITS))
        return await self.read(lambda connection: pages.search_pages(connection, query, limit=most))

    async def read_conversation(self, call: Call, channel: str, *, whole: bool) -> model.ConversationReading:
        """Return the messages of a channel since the last summary, or all messages if `whole`. Raises Denied."""
        require("conversation.read", "read", {"channel": channel}, call.context)
        of = channel or call.context.channel
        return await self.read(lambda connection: read_messages(connection, call.context, of, whole=whole))

    async def propose(self, call: Call, draft: model.PageDraft | model.SummaryDraft) -> Outcome:
        """Submit a draft as this turn's candidate, once. Raises Denied, InvalidInput."""
        context, now, new_id = call.context, self._clock.now(), f"c-{self._entropy.hex(12)}"
        page = isinstance(draft, model.PageDraft)
        scope = "page.propose" if page else "summary.propose"
        reached = {"sources": draft.sources} if isinstance(draft, model.PageDraft) else {"channel": draft.channel}
        require(scope, "write", reached, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            made = submit(connection, draft, context, at=now, new_id=new_id)
            assert isinstance(made, model.Candidate), "submit must return the candidate"
            return {
                "candidate_id": made.candidate_id,
                "kind": made.kind,
                "channel": made.channel,
                "title": made.title,
                "origin": made.origin,
                "lifecycle": made.lifecycle,
                "deviations": of_candidate(connection, new_id),
            }

        return await self.once(call, scope, now, write, (PAGES,) if page else ())

    async def fetch(self, call: Call, url: str) -> Any:
        """Return a page of the public web. Raises Denied, InvalidInput, NotFound, Unreachable.

        The category is also checked for the host of each redirect.
        """
        context = call.context
        require("web.fetch", "external-read", {"url": url}, context)
        if self._web is None:
            raise InvalidInput("the part that reads web pages is not installed", where="web_fetch")
        return await self._web.fetch(
            url, lambda target: require("web.fetch", "external-read", {"url": target.url}, context)
        )

    async def page_standing(self, call: Call, page_id: str, version: int) -> Standing:
        """Return a page, or an earlier version of it, with its sources and derived pages. Raises NotFound, Denied."""
        require("corpus.read", "read", {}, call.context)
        return await self.read(lambda connection: standing(connection, page_id, version))

    async def next_items(self, call: Call, limit: int) -> tuple[list[revalidation.Item], int]:
        """Return the longest waiting items, at most five, and the number of all. Changes nothing. Raises Denied."""
        require("revalidation.next", "read", {}, call.context)
        most = max(1, min(limit, MOST_ITEMS))

        def work(connection: Connection) -> tuple[list[revalidation.Item], int]:
            return revalidation.list_items(connection, limit=most), revalidation.count_waiting(connection)

        return await self.read(work)

    async def settle_item(self, call: Call, settlement: revalidation.Settlement) -> Outcome:
        """Take an item out of the queue, once. Raises Denied, InvalidInput, NotFound, Conflict."""
        context, now = call.context, self._clock.now()
        require("revalidation.settle", "write", {}, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            item = submit(connection, settlement, context, at=now, new_id="")
            assert isinstance(item, revalidation.Item), "submit must return the item"
            return {"item": item.item_id, "page": item.page_id, "result": item.result, "state": item.state}

        return await self.once(call, "revalidation.settle", now, write, (PAGES,))

    async def record_deviation(self, call: Call, draft: DeviationDraft) -> Outcome:
        """Record a deviation, once. Raises Denied, InvalidInput, NotFound, Conflict."""
        context, now = call.context, self._clock.now()
        require("deviation.record", "write", {}, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            made = submit(connection, draft, context, at=now, new_id="")
            assert isinstance(made, Deviation), "submit must return the deviation"
            named = {"deviation_id": made.deviation_id, "page": made.page_id, "channel": made.channel}
            return named | {"origin": made.origin, "lifecycle": made.lifecycle}

        return await self.once(call, "deviation.record", now, write, (PAGES,))

    async def read_attachment(self, call: Call, page_id: str, name: str) -> tuple[pages.Attachment, str]:
        """Return an attachment and its text. Raises Denied, NotFound; InvalidInput if the attachment is not text."""
        require("attachment.read", "read", {}, call.context)
        found, data = await self.read(lambda connection: pages.get_attachment(connection, page_id, name))
        return found, pages.as_text(found, data)


def standing(connection: Connection, page_id: str, version: int = 0) -> Standing:
    """Return a page, in the given version if any, with its sources and derived pages. Raises NotFound."""
    derived = revalidation.derived_from(connection, page_id, most=revalidation.MOST_DEPENDENTS)
    return Standing(
        page=pages.get_version(connection, page_id, version) if version else pages.get_page(connection, page_id),
        sources=revalidation.links_of(connection, page_id),
        derived=tuple(found for found, _ in derived),
        attachments=tuple(pages.list_attachments(connection, page_id)),
    )


def read_messages(
    connection: Connection, context: TurnContext, channel: str, *, whole: bool
) -> model.ConversationReading:
    """Return the newest messages of author and agents in a channel that fit the budget, oldest first.

    Args:
        context: the turn that reads; its own messages are left out.
        whole: from the beginning; otherwise only messages after the last summary of this task, or of any task for an
            author's turn. Turns that proposed a summary are left out, so that tasks do not summarize each other.
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
        model.ChannelMessage(turn_id=row.turn_id, role=row.role, text=row.text, at=from_us(row.at_us))
        for row in connection.execute(query)
    ]
    kept = fitting(newest[:MOST_MESSAGES], READING_BUDGET)
    since = None if since_us is None else from_us(since_us)
    return model.ConversationReading(
        channel=channel, since=since, messages=tuple(reversed(kept)), left_out=len(newest) - len(kept)
    )


def _last_summary(connection: Connection, context: TurnContext, channel: str) -> int | None:
    """Return the time of the last summary by another turn, so that a repeated turn reads the same messages."""
    query = _summaries(channel).where(candidates.c.turn_id != context.turn_id)
    if context.task_name:
        query = query.where(candidates.c.task_name == context.task_name)
    return connection.execute(query.with_only_columns(func.max(candidates.c.created_at_us))).scalar()


def _summaries(channel: str) -> Select[Any]:
    return select(candidates).where(candidates.c.channel == channel, candidates.c.kind == model.SUMMARY)
