"""The service's reading methods over the store itself, for a command line that finds the daemon down.

Loaded only then: it imports SQLAlchemy. It opens the store read-only, so that it changes nothing and migrates nothing.
"""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from agent_runtime.service import corpus_rpc, memory_rpc, reads
from agent_runtime.store.schema import open_database
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.config.home import Home
from turnkeeper.errors import NotFound

T = TypeVar("T")


class Stored:
    """Answers as the daemon would, by the same names. Before anything ran, every list is empty."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def ListChannels(self, request: wire.ListChannelsRequest) -> wire.ListChannelsResponse:  # noqa: N802
        """Answer which channels have a conversation."""
        return self._list(lambda connection: reads.list_channels(connection, request), wire.ListChannelsResponse())

    def GetConversation(self, request: wire.GetConversationRequest) -> wire.Conversation:  # noqa: N802
        """Answer a channel's conversation."""
        empty = wire.Conversation(channel=request.channel)
        return self._list(lambda connection: reads.get_conversation(connection, request), empty)

    def GetTurn(self, request: wire.GetTurnRequest) -> wire.Turn:  # noqa: N802
        """Answer one turn. Raises NotFound."""
        return self._run(lambda connection: reads.get_turn(connection, request.turn_id))

    def ListTurns(self, request: wire.ListTurnsRequest) -> wire.ListTurnsResponse:  # noqa: N802
        """Answer turns."""
        return self._list(lambda connection: reads.list_turns(connection, request), wire.ListTurnsResponse())

    def ListThreads(self, request: wire.ListThreadsRequest) -> wire.ListThreadsResponse:  # noqa: N802
        """Answer threads."""
        return self._list(lambda connection: reads.list_threads(connection, request), wire.ListThreadsResponse())

    def ListInterrupts(self, request: wire.ListInterruptsRequest) -> wire.ListInterruptsResponse:  # noqa: N802
        """Answer what authors are asked."""
        empty = wire.ListInterruptsResponse()
        return self._list(lambda connection: reads.list_interrupts(connection, request), empty)

    def ListCandidates(self, request: wire.ListCandidatesRequest) -> wire.ListCandidatesResponse:  # noqa: N802
        """Answer what agents proposed."""
        empty = wire.ListCandidatesResponse()
        return self._list(lambda connection: reads.list_candidates(connection, request), empty)

    def ListPages(self, request: wire.ListPagesRequest) -> wire.ListPagesResponse:  # noqa: N802
        """Answer the workspace's pages."""
        return self._list(lambda connection: corpus_rpc.list_pages(connection, request), wire.ListPagesResponse())

    def GetPage(self, request: wire.GetPageRequest) -> wire.Page:  # noqa: N802
        """Answer one page. Raises NotFound."""
        return self._run(lambda connection: corpus_rpc.get_page(connection, request))

    def ListAttachments(self, request: wire.ListAttachmentsRequest) -> wire.ListAttachmentsResponse:  # noqa: N802
        """Answer the files beside a page. Raises NotFound."""
        return self._run(lambda connection: corpus_rpc.attachments_of(connection, request))

    def GetAttachment(self, request: wire.GetAttachmentRequest) -> wire.Attachment:  # noqa: N802
        """Answer a file beside a page. Raises NotFound."""
        return self._run(lambda connection: corpus_rpc.read_attachment(connection, request))

    def ListDeviations(self, request: wire.ListDeviationsRequest) -> wire.ListDeviationsResponse:  # noqa: N802
        """Answer where something contradicts canonical pages."""
        empty = wire.ListDeviationsResponse()
        return self._list(lambda connection: corpus_rpc.list_deviations(connection, request), empty)

    def GetDeviation(self, request: wire.GetDeviationRequest) -> wire.Deviation:  # noqa: N802
        """Answer one deviation. Raises NotFound."""
        return self._run(lambda connection: corpus_rpc.get_deviation(connection, request))

    def ListRevalidation(self, request: wire.ListRevalidationRequest) -> wire.ListRevalidationResponse:  # noqa: N802
        """Answer the re-validation queue."""
        empty = wire.ListRevalidationResponse()
        return self._list(lambda connection: corpus_rpc.list_revalidation(connection, request), empty)

    def ListMemory(self, request: wire.ListMemoryRequest) -> wire.ListMemoryResponse:  # noqa: N802
        """Answer memory entries."""
        return self._list(lambda connection: memory_rpc.list_memory(connection, request), wire.ListMemoryResponse())

    def SearchMemory(self, request: wire.SearchMemoryRequest) -> wire.ListMemoryResponse:  # noqa: N802
        """Answer the memory entries that fit a query."""
        return self._list(lambda connection: memory_rpc.search_memory(connection, request), wire.ListMemoryResponse())

    def GetMemory(self, request: wire.GetMemoryRequest) -> wire.MemoryEntry:  # noqa: N802
        """Answer one memory entry. Raises NotFound."""
        return self._run(lambda connection: memory_rpc.get_memory(connection, request))

    def _list(self, work: Callable[[Connection], T], empty: T) -> T:
        return self._run(work) if self._home.agent_db.exists() else empty

    def _run(self, work: Callable[[Connection], T]) -> T:
        if not self._home.agent_db.exists():
            raise NotFound("nothing has run here yet", where=str(self._home.root), hint="start it with: turnkeeper up")
        database = open_database(self._home, read_only=True)
        try:
            return database.submit(work).result()
        finally:
            database.close()
