"""The service's methods about the workspace, for its author: reads from a connection, changes through the workspace."""

from typing import Any

from sqlalchemy import Connection

from agent_runtime.service.messages import attachment_message, deviation_message, item_message, page_message
from agent_runtime.workspace import deviations, revalidation
from agent_runtime.workspace import pages as queries
from agent_runtime.workspace.attachments import AttachmentDraft, get_attachment, list_attachments
from agent_runtime.workspace.authoring import Authoring
from agent_runtime.workspace.deviations import Resolution
from agent_runtime.workspace.model import Author, PageDraft
from agent_runtime.workspace.review import standing
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import InvalidInput

MOST_LISTED = 1_000
LIFECYCLES = ("draft", "canonical")
ORIGINS = ("authored", "agent-produced", "imported", "observed")


def list_pages(connection: Connection, request: wire.ListPagesRequest) -> wire.ListPagesResponse:
    """Answer the workspace's pages without their bodies. Raises InvalidInput for a lifecycle or origin of no page."""
    for field, value, known in (
        ("lifecycle", request.lifecycle, LIFECYCLES),
        ("origin", request.origin, ORIGINS),
    ):
        if value and value not in known:
            seen = " (candidates: agent-runtime candidates list)" if value == "candidate" else ""
            hint = f"there are {', '.join(known)}{seen}"
            raise InvalidInput(f"no page has the {field} {value[:40]!r}", where=field, hint=hint)
    found = queries.list_pages(
        connection, tag=request.tag, lifecycle=request.lifecycle, origin=request.origin, after=request.after
    )
    return wire.ListPagesResponse(pages=[page_message(page, with_body=False) for page in found])


def get_page(connection: Connection, request: wire.GetPageRequest) -> wire.Page:
    """Answer one page, what it is derived from, and what lies beside it. Raises NotFound."""
    found = standing(connection, request.page_id)
    message = page_message(found.page)
    message.sources.extend(found.sources)
    message.attachments.extend(attachment_message(one) for one in found.attachments)
    return message


def read_attachment(connection: Connection, request: wire.GetAttachmentRequest) -> wire.Attachment:
    """Answer a file beside a page, with its bytes. Raises NotFound."""
    found, data = get_attachment(connection, request.page_id, request.name)
    return attachment_message(found, data)


def attachments_of(connection: Connection, request: wire.ListAttachmentsRequest) -> wire.ListAttachmentsResponse:
    """Answer the files beside a page. Raises NotFound where there is no such page."""
    queries.get_page(connection, request.page_id)
    found = list_attachments(connection, request.page_id)
    return wire.ListAttachmentsResponse(attachments=[attachment_message(one) for one in found])


def list_deviations(connection: Connection, request: wire.ListDeviationsRequest) -> wire.ListDeviationsResponse:
    """Answer where something contradicts canonical pages, newest first."""
    found = deviations.list_deviations(connection, channel=request.channel, include_decided=request.all)
    return wire.ListDeviationsResponse(deviations=[deviation_message(one) for one in found])


def get_deviation(connection: Connection, request: wire.GetDeviationRequest) -> wire.Deviation:
    """Answer one deviation. Raises NotFound."""
    return deviation_message(deviations.get_deviation(connection, request.deviation_id))


def list_revalidation(connection: Connection, request: wire.ListRevalidationRequest) -> wire.ListRevalidationResponse:
    """Answer the pages to be held against changed sources, those that wait longest first."""
    if request.limit < 0:
        raise InvalidInput("is negative", where="limit")
    limit = min(request.limit or MOST_LISTED, MOST_LISTED)
    found = revalidation.list_items(connection, page_id=request.page_id, include_settled=request.all, limit=limit)
    waiting = revalidation.count_waiting(connection)
    return wire.ListRevalidationResponse(items=[item_message(item) for item in found], waiting=waiting)


class Corpus:
    """The methods that change the workspace, and on a running service also those that read; a part of the servicer."""

    _authors: Authoring
    _read: Any

    async def ListPages(self, request: wire.ListPagesRequest, _context: Any) -> wire.ListPagesResponse:  # noqa: N802
        """Answer the workspace's pages without their bodies."""
        found: wire.ListPagesResponse = await self._read(lambda connection: list_pages(connection, request))
        return found

    async def GetPage(self, request: wire.GetPageRequest, _context: Any) -> wire.Page:  # noqa: N802
        """Answer one page."""
        found: wire.Page = await self._read(lambda connection: get_page(connection, request))
        return found

    async def PutPage(self, request: wire.PutPageRequest, _context: Any) -> wire.Page:  # noqa: N802
        """Write an author's page."""
        done = await self._authors.put(_draft(request), author=Author(drafting=request.draft))
        asked = wire.GetPageRequest(page_id=done.page.page_id)
        message: wire.Page = await self._read(lambda connection: get_page(connection, asked))
        message.queued = done.queued
        return message

    async def ImportPages(  # noqa: N802
        self, request: wire.ImportPagesRequest, _context: Any
    ) -> wire.ImportPagesResponse:
        """Write pages of an author's import: all of them or none."""
        done = await self._authors.import_pages([_draft(page) for page in request.pages], dry_run=request.dry_run)
        pages = [
            wire.ImportedPage(
                page_id=one.page.page_id, outcome=one.outcome, version=one.page.version, queued=one.queued
            )
            for one in done
        ]
        return wire.ImportPagesResponse(pages=pages)

    async def PutAttachment(  # noqa: N802
        self, request: wire.PutAttachmentRequest, _context: Any
    ) -> wire.Attachment:
        """Put a file beside a page, as its author."""
        draft = AttachmentDraft(
            page_id=request.page_id, name=request.name, content_type=request.content_type, data=request.data
        )
        return attachment_message(await self._authors.attach(draft))

    async def GetAttachment(  # noqa: N802
        self, request: wire.GetAttachmentRequest, _context: Any
    ) -> wire.Attachment:
        """Answer a file beside a page, with its bytes."""
        found: wire.Attachment = await self._read(lambda connection: read_attachment(connection, request))
        return found

    async def ListAttachments(  # noqa: N802
        self, request: wire.ListAttachmentsRequest, _context: Any
    ) -> wire.ListAttachmentsResponse:
        """Answer the files beside a page."""
        found: wire.ListAttachmentsResponse = await self._read(lambda connection: attachments_of(connection, request))
        return found

    async def ListDeviations(  # noqa: N802
        self, request: wire.ListDeviationsRequest, _context: Any
    ) -> wire.ListDeviationsResponse:
        """Answer where something contradicts canonical pages."""
        found: wire.ListDeviationsResponse = await self._read(lambda connection: list_deviations(connection, request))
        return found

    async def GetDeviation(self, request: wire.GetDeviationRequest, _context: Any) -> wire.Deviation:  # noqa: N802
        """Answer one deviation."""
        found: wire.Deviation = await self._read(lambda connection: get_deviation(connection, request))
        return found

    async def ResolveDeviation(  # noqa: N802
        self, request: wire.ResolveDeviationRequest, _context: Any
    ) -> wire.Deviation:
        """Close a deviation, as its author."""
        resolution = Resolution(deviation_id=request.deviation_id, accept=request.accept, note=request.note)
        return deviation_message(await self._authors.resolve(resolution))

    async def ListRevalidation(  # noqa: N802
        self, request: wire.ListRevalidationRequest, _context: Any
    ) -> wire.ListRevalidationResponse:
        """Answer the re-validation queue."""
        found: wire.ListRevalidationResponse = await self._read(
            lambda connection: list_revalidation(connection, request)
        )
        return found


def _draft(request: wire.PutPageRequest) -> PageDraft:
    return PageDraft(
        page_id=request.page_id,
        title=request.title,
        body=request.body,
        tags=tuple(request.tags),
        sources=tuple(request.sources),
    )
