"""Reviewing the corpus behind the scopes of the turn that asks: pages, the queue, deviations, attachments.

Scopes are checked here, whatever was checked before, and each write happens once however often its call is run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agent_runtime.permissions.judge import require
from agent_runtime.store.idempotency import Call, Outcome
from agent_runtime.workspace import pages, revalidation
from agent_runtime.workspace.attachments import Attachment, as_text, get_attachment, list_attachments
from agent_runtime.workspace.deviations import Deviation, DeviationDraft
from agent_runtime.workspace.memory.memory import Books
from agent_runtime.workspace.model import Page
from agent_runtime.workspace.revalidation import Item, Settlement
from agent_runtime.workspace.submit import submit
from turnkeeper.clock import Clock

MOST_ITEMS = 5  # that one reading of the queue gives


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A page and what it stands among.

    Attributes:
        page: the page, or an earlier version of it.
        sources: what it is derived from now: `page@version`, or an address.
        derived: pages derived from it, directly or through others; the nearest 1,000.
        attachments: files beside it.
    """

    page: Page
    sources: tuple[str, ...]
    derived: tuple[str, ...]
    attachments: tuple[Attachment, ...]


class Reviewing:
    """What turns do to find out whether pages still hold."""

    def __init__(self, books: Books, clock: Clock) -> None:
        self._books = books
        self._clock = clock

    async def corpus(self, call: Call, page_id: str, version: int) -> Standing:
        """Return a page, or an earlier version of it, and what it stands among. Raises NotFound, Denied."""
        require("corpus.read", "read", {}, call.context)
        return await self._books.read(lambda connection: standing(connection, page_id, version))

    async def next(self, call: Call, limit: int) -> tuple[list[Item], int]:
        """Return the items that wait longest, at most five, and how many wait. Changes nothing. Raises Denied."""
        require("revalidation.next", "read", {}, call.context)
        most = max(1, min(limit, MOST_ITEMS))

        def work(connection: Connection) -> tuple[list[Item], int]:
            return revalidation.list_items(connection, limit=most), revalidation.count_waiting(connection)

        return await self._books.read(work)

    async def settle(self, call: Call, settlement: Settlement) -> Outcome:
        """Take an item out of the queue, once. Raises Denied, InvalidInput, NotFound, Conflict."""
        context, now = call.context, self._clock.now()
        require("revalidation.settle", "write", {}, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            item = submit(connection, settlement, context, at=now, new_id="")
            assert isinstance(item, Item), "a verdict gives its item"
            return {"item": item.item_id, "page": item.page_id, "result": item.result, "state": item.state}

        return await self._books.once(call, "revalidation.settle", now, write)

    async def record(self, call: Call, draft: DeviationDraft) -> Outcome:
        """Record a deviation, once. Raises Denied, InvalidInput, NotFound, Conflict."""
        context, now = call.context, self._clock.now()
        require("deviation.record", "write", {}, context)

        def write(connection: Connection) -> Mapping[str, Any]:
            made = submit(connection, draft, context, at=now, new_id="")
            assert isinstance(made, Deviation), "a deviation is recorded as one"
            named = {"deviation_id": made.deviation_id, "page": made.page_id, "channel": made.channel}
            return named | {"origin": made.origin, "lifecycle": made.lifecycle}

        return await self._books.once(call, "deviation.record", now, write)

    async def attachment(self, call: Call, page_id: str, name: str) -> tuple[Attachment, str]:
        """Return the text of a file beside a page. Raises Denied, NotFound; InvalidInput for what is no text."""
        require("attachment.read", "read", {}, call.context)
        found, data = await self._books.read(lambda connection: get_attachment(connection, page_id, name))
        return found, as_text(found, data)


def standing(connection: Connection, page_id: str, version: int = 0) -> Standing:
    """Return a page, in an earlier version if one is named, and what it stands among. Raises NotFound."""
    derived = revalidation.derived_from(connection, page_id, most=revalidation.MOST_DEPENDENTS)
    return Standing(
        page=pages.get_version(connection, page_id, version) if version else pages.get_page(connection, page_id),
        sources=revalidation.links_of(connection, page_id),
        derived=tuple(found for found, _ in derived),
        attachments=tuple(list_attachments(connection, page_id)),
    )
