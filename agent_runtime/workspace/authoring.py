"""The author's own acts on the workspace: putting, importing, attaching, closing deviations. They take no turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, select

from agent_runtime.store.workspace_schema import pages
from agent_runtime.workspace import model, revalidation
from agent_runtime.workspace import pages as queries
from agent_runtime.workspace.attachments import Attachment, AttachmentDraft
from agent_runtime.workspace.deviations import Deviation, Resolution
from agent_runtime.workspace.submit import submit
from agent_runtime.workspace.transactions import Transactions
from turnkeeper.clock import Clock
from turnkeeper.errors import InvalidInput

MOST_IMPORTED = 500  # in one transaction


@dataclass(frozen=True, kw_only=True)
class Put:
    """What became of a page that an author wrote.

    Attributes:
        page: the page as it is now.
        outcome: new, changed, or unchanged: an import found it there already.
        queued: how many pages derived from it wait for re-validation because of it.
    """

    page: model.Page
    outcome: str
    queued: int


class _Undone(Exception):
    """No error: it carries what would have been, past the transaction that it undoes."""

    def __init__(self, puts: Sequence[Put]) -> None:
        super().__init__()
        self.puts = puts


class Authoring:
    """What an author does, by command."""

    def __init__(self, transactions: Transactions, clock: Clock) -> None:
        self._transactions = transactions
        self._clock = clock

    async def put(self, draft: model.PageDraft, *, author: model.Author | None = None) -> Put:
        """Write a page: authored and canonical, or a draft. Raises InvalidInput, NotFound, Conflict."""
        by, now = author or model.Author(), self._clock.now()

        done = await self._transactions.write(lambda connection: _put(connection, draft, by, now))
        self._emit(done)
        return done

    async def import_pages(
        self, drafts: Sequence[model.PageDraft], *, dry_run: bool = False, author: model.Author | None = None
    ) -> Sequence[Put]:
        """Write pages of an import, origin imported: all of them or none; those that are there already stay.

        Args:
            drafts: what one is derived from comes before it, or is in the workspace.
            dry_run: tell what would become of each, and change nothing.
            author: who imports.

        Raises:
            InvalidInput, NotFound, Conflict: of the first draft that cannot be written.
        """
        if len(drafts) > MOST_IMPORTED:
            raise InvalidInput(f"{len(drafts)} pages; at most {MOST_IMPORTED} can be imported at once", where="pages")
        by, now = replace(author or model.Author(), imports=True), self._clock.now()

        def put_one(connection: Connection, draft: model.PageDraft) -> Put:
            if dry_run:  # what comes before it in the import may not be there yet
                known = select(pages.c.page_id).where(pages.c.page_id.in_(draft.sources))
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

    async def attach(self, draft: AttachmentDraft, *, author: model.Author | None = None) -> Attachment:
        """Attach a file to a page. Raises InvalidInput, NotFound, Exhausted."""
        by, now = author or model.Author(), self._clock.now()
        made = await self._transactions.write(lambda connection: submit(connection, draft, by, at=now, new_id=""))
        assert isinstance(made, Attachment), "an attachment is kept as one"
        fields = {"page_id": made.page_id, "size": made.size, "sha256": made.sha256}
        self._transactions.emit("attachment.put", fields | {"origin": made.origin, "lifecycle": made.lifecycle})
        return made

    async def resolve(self, resolution: Resolution, *, author: model.Author | None = None) -> Deviation:
        """Close a deviation. Raises NotFound, Conflict, InvalidInput."""
        by, now = author or model.Author(), self._clock.now()
        closed = await self._transactions.write(
            lambda connection: submit(connection, resolution, by, at=now, new_id="")
        )
        assert isinstance(closed, Deviation), "a resolution gives the deviation"
        fields = {"deviation_id": closed.deviation_id, "page_id": closed.page_id, "turn_id": closed.turn_id}
        self._transactions.emit("deviation.resolved", fields | {"origin": closed.origin, "lifecycle": closed.lifecycle})
        return closed

    async def decide(
        self, candidate_id: str, *, accept: bool, note: str = "", author: model.Author | None = None
    ) -> model.Candidate:
        """Take an author's decision about a candidate. Raises NotFound, Conflict, InvalidInput."""
        by, now = author or model.Author(), self._clock.now()
        decision = (model.Acceptance if accept else model.Rejection)(candidate_id=candidate_id, note=note)
        made = await self._transactions.write(lambda connection: submit(connection, decision, by, at=now, new_id=""))
        assert isinstance(made, model.Candidate), "a decision gives the candidate"
        fields = {"candidate_id": made.candidate_id, "turn_id": made.turn_id, "channel": made.channel}
        self._transactions.emit("candidate.decided", fields | {"origin": made.origin, "lifecycle": made.lifecycle})
        return made

    def _emit(self, done: Put) -> None:
        page = done.page
        fields = {"page_id": page.page_id, "version": page.version, "queued": done.queued}
        self._transactions.emit("page.put", fields | {"origin": page.origin, "lifecycle": page.lifecycle})


def _put(connection: Connection, draft: model.PageDraft, by: model.Author, at: datetime) -> Put:
    known = connection.execute(select(pages.c.version).where(pages.c.page_id == draft.page_id)).one_or_none()
    page = submit(connection, draft, by, at=at, new_id="")
    assert isinstance(page, model.Page), "an author's page is a page"
    queued = revalidation.count_waiting(connection, cause=page.page_id)
    return Put(page=page, outcome="changed" if known else "new", queued=queued)


def _same(connection: Connection, draft: model.PageDraft) -> model.Page | None:
    """Return the page if the draft would change nothing about it."""
    row = connection.execute(select(pages).where(pages.c.page_id == draft.page_id)).mappings().one_or_none()
    if row is None:
        return None
    page = queries.to_page(row)
    linked = {source.rpartition("@")[0] or source for source in revalidation.links_of(connection, page.page_id)}
    links = {source for source in draft.sources if source != page.page_id}
    same = (page.title, page.body, page.tags, page.lifecycle) == (draft.title, draft.body, draft.tags, "canonical")
    return page if same and (not links or links == linked) else None
