"""The service's methods for the workspace and its memory: the reads of `READS`, and an author's changes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from sqlalchemy import Connection

from agent_runtime.model.mapping import to_message
from agent_runtime.service import memory_items
from agent_runtime.service.reads import READS, Read, get_page
from agent_runtime.workspace.deviations import Resolution
from agent_runtime.workspace.memory import Namespaces, Spot
from agent_runtime.workspace.model import Author, PageDraft
from agent_runtime.workspace.pages import AttachmentDraft
from agent_runtime.workspace.workspace import Workspace
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.callers import current
from turnkeeper.v1 import agent_runtime_pb2 as wire

T = TypeVar("T")
S = TypeVar("S", bound="WorkspaceService")


def _reading(read: Read) -> Callable[[Any, Any, Any], Awaitable[Any]]:
    async def answer(self: "WorkspaceService", request: Any, _context: Any) -> Any:
        return await self.workspace.read(lambda connection: read(connection, request))

    return answer


def with_reads(kind: type[S]) -> type[S]:
    """Add each method of `READS` that a class lacks."""
    for method, read in READS.items():
        if not hasattr(kind, method):
            setattr(kind, method, _reading(read))
    return kind


class WorkspaceService:
    """An author's changes to the workspace and to memory; a part of the servicer. Errors pass through unchanged."""

    workspace: Workspace
    namespaces: Mapping[str, Namespaces]  # names of graphs, the default graph first

    async def PutPage(self, request: wire.PutPageRequest, _context: Any) -> wire.Page:
        done = await self.workspace.authors.put(_draft(request), author=Author(drafting=request.draft))

        def written(connection: Connection) -> wire.Page:
            return get_page(connection, wire.GetPageRequest(page_id=done.page.page_id))

        message = await self.workspace.read(written)
        message.queued = done.queued
        return message

    async def ImportPages(self, request: wire.ImportPagesRequest, _context: Any) -> Any:
        """Write the pages of an author's import: all of them or none."""
        drafts = [_draft(page) for page in request.pages]
        done = await self.workspace.authors.import_pages(drafts, dry_run=request.dry_run)
        pages = [to_message(wire.ImportedPage, one.page, outcome=one.outcome, queued=one.queued) for one in done]
        return wire.ImportPagesResponse(pages=pages)

    async def PutAttachment(self, request: wire.PutAttachmentRequest, _context: Any) -> wire.Attachment:
        """Attach a file to a page, as its author."""
        draft = AttachmentDraft(
            page_id=request.page_id, name=request.name, content_type=request.content_type, data=request.data
        )
        return to_message(wire.Attachment, await self.workspace.authors.attach(draft))

    async def DecideCandidate(self, request: wire.DecideCandidateRequest, _context: Any) -> wire.Candidate:
        """Accept or reject a candidate, as its author."""
        decided = await self.workspace.authors.decide(
            request.candidate_id, accept=request.accept, note=request.note, via=str(current())
        )
        return to_message(wire.Candidate, decided)

    async def ResolveDeviation(self, request: wire.ResolveDeviationRequest, _context: Any) -> wire.Deviation:
        resolution = Resolution(deviation_id=request.deviation_id, accept=request.accept, note=request.note)
        return to_message(wire.Deviation, await self.workspace.authors.resolve(resolution, str(current())))

    async def PutMemory(self, request: wire.PutMemoryRequest, _context: Any) -> wire.MemoryEntry:
        return await self._put_memory(request, must_be_there=False)

    async def UpdateMemory(self, request: wire.PutMemoryRequest, _context: Any) -> wire.MemoryEntry:
        """Change an existing memory entry; from now on the entry belongs to its author."""
        return await self._put_memory(request, must_be_there=True)

    async def ForgetMemory(self, request: wire.GetMemoryRequest, _context: Any) -> wire.MemoryEntry:
        """Delete a memory entry; return its last content."""
        own = self.own_part(request.graph)
        gone = await self.workspace.memory.author_forgets(*memory_items.place(request, own))
        return memory_items.item(gone, own)

    async def GetMemory(self, request: wire.GetMemoryRequest, _context: Any) -> wire.MemoryEntry:
        return await self._with_own(memory_items.get_memory, request)

    async def ListMemory(self, request: wire.ListMemoryRequest, _context: Any) -> wire.ListMemoryResponse:
        """Return memory entries, newest first."""
        return await self._with_own(memory_items.list_memory, request)

    async def ListMemoryNamespaces(
        self, request: wire.ListMemoryNamespacesRequest, _context: Any
    ) -> wire.ListMemoryNamespacesResponse:
        return await self._with_own(memory_items.list_namespaces, request)

    async def SearchMemory(self, request: wire.SearchMemoryRequest, _context: Any) -> wire.ListMemoryResponse:
        """Return the memory entries that match a query best."""
        return await self._with_own(memory_items.search_memory, request)

    def own_part(self, graph: str) -> Spot | None:
        """Return a graph's own part of the memory. Raises InvalidInput if the graph does not exist."""
        known = self.namespaces
        if graph and graph not in known:
            raise InvalidInput(f"no graph {graph[:80]!r}", where="graph", hint=f"use one of: {', '.join(known)}")
        return memory_items.own_part(known[graph or next(iter(known))])

    async def _with_own(self, read: Callable[..., T], request: Any) -> T:
        own = self.own_part(request.graph)
        return await self.workspace.read(lambda connection: read(connection, request, own))

    async def _put_memory(self, request: wire.PutMemoryRequest, *, must_be_there: bool) -> wire.MemoryEntry:
        own = self.own_part(request.graph)
        (shelf, key), (text, form) = memory_items.place(request, own), memory_items.written(request)
        how: Any = {"must_be_there": must_be_there, "author": Author(via=str(current()))}
        entry = await self.workspace.memory.author_puts(shelf, key=key, text=text, form=form, **how)
        return memory_items.item(entry, own)


def _draft(request: wire.PutPageRequest) -> PageDraft:
    texts = {name: getattr(request, name) for name in ("page_id", "title", "body")}
    return PageDraft(**texts, tags=tuple(request.tags), sources=tuple(request.sources))
