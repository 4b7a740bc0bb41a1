"""The service's methods about memory, for its author: reads from an open connection, changes through the workspace."""

from typing import Any

from sqlalchemy import Connection

from agent_runtime.service.messages import memory_message
from agent_runtime.workspace.memory import entries as memory
from agent_runtime.workspace.memory.entries import Shelf, check_shelf
from agent_runtime.workspace.memory.memory import Remembering
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import InvalidInput

MOST_LISTED = 1_000


def list_memory(connection: Connection, request: wire.ListMemoryRequest) -> wire.ListMemoryResponse:
    """Answer entries, newest first. Raises InvalidInput for a tier that there is not."""
    if request.tier:
        check_shelf(request.tier, request.owner or ("any" if request.tier in memory.OWNED else ""))
    most = min(request.limit or MOST_LISTED, MOST_LISTED)
    if most < 0:
        raise InvalidInput("is negative", where="limit")
    found = memory.list_entries(connection, tier=request.tier, owner=request.owner, limit=most)
    left_out = memory.count(connection, tier=request.tier, owner=request.owner) - len(found)
    return wire.ListMemoryResponse(entries=[memory_message(entry) for entry in found], left_out=left_out)


def get_memory(connection: Connection, request: wire.GetMemoryRequest) -> wire.MemoryEntry:
    """Answer one entry. Raises NotFound, InvalidInput."""
    return memory_message(memory.get(connection, _shelf(request), request.key))


def search_memory(connection: Connection, request: wire.SearchMemoryRequest) -> wire.ListMemoryResponse:
    """Answer the entries that fit a query best. Raises InvalidInput."""
    if not request.query.strip():
        raise InvalidInput("wants words to look for", where="query")
    shelf = check_shelf(request.tier, request.owner) if request.tier else None
    found = memory.search(connection, shelf, request.query, limit=request.limit or memory.MOST_READ)
    return wire.ListMemoryResponse(entries=[memory_message(one) for one in found.entries], left_out=found.left_out)


class Memories:
    """The methods that change memory, and on a running service also those that read; a part of the servicer."""

    _remembering: Remembering
    _read: Any

    async def ListMemory(self, request: wire.ListMemoryRequest, _context: Any) -> wire.ListMemoryResponse:  # noqa: N802
        """Answer entries, newest first."""
        found: wire.ListMemoryResponse = await self._read(lambda connection: list_memory(connection, request))
        return found

    async def GetMemory(self, request: wire.GetMemoryRequest, _context: Any) -> wire.MemoryEntry:  # noqa: N802
        """Answer one entry."""
        found: wire.MemoryEntry = await self._read(lambda connection: get_memory(connection, request))
        return found

    async def SearchMemory(  # noqa: N802
        self, request: wire.SearchMemoryRequest, _context: Any
    ) -> wire.ListMemoryResponse:
        """Answer the entries that fit a query best."""
        found: wire.ListMemoryResponse = await self._read(lambda connection: search_memory(connection, request))
        return found

    async def PutMemory(self, request: wire.PutMemoryRequest, _context: Any) -> wire.MemoryEntry:  # noqa: N802
        """Write an entry as its author."""
        shelf = _shelf(request)
        return memory_message(await self._remembering.author_puts(shelf, key=request.key, text=request.text))

    async def UpdateMemory(self, request: wire.PutMemoryRequest, _context: Any) -> wire.MemoryEntry:  # noqa: N802
        """Change an entry that is there; from now on it is its author's."""
        return memory_message(
            await self._remembering.author_puts(_shelf(request), key=request.key, text=request.text, must_be_there=True)
        )

    async def ForgetMemory(self, request: wire.GetMemoryRequest, _context: Any) -> wire.MemoryEntry:  # noqa: N802
        """Delete an entry; answer what it was."""
        return memory_message(await self._remembering.author_forgets(_shelf(request), request.key))


def _shelf(request: wire.GetMemoryRequest | wire.PutMemoryRequest) -> Shelf:
    return check_shelf(request.tier, request.owner)
