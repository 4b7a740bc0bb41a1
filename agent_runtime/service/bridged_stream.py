"""The stream of bridged events: one call is served at a time, and what it says is kept is kept over restarts too."""

from collections.abc import AsyncIterator, Callable

from sqlalchemy import Connection

from agent_runtime.store import bridged
from agent_runtime.store.turn_events import MOST_SENT, bridged_message, read_names
from agent_runtime.store.turn_store import Store
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire


class BridgedStream:
    """One call of `WatchEvents`; a newer one ends it."""

    def __init__(self, store: Store, names: frozenset[str], after: int, call: int) -> None:
        self._store = store
        self._names = names
        self._call = call
        self.after = after

    @classmethod
    async def open(cls, store: Store, request: wire.WatchEventsRequest) -> "BridgedStream":
        """Write what the call wants kept and has read, and take the place of the call before.

        Raises:
            InvalidInput: it names what no event is called.
        """
        names = read_names(request.names)
        same = request.incarnation == store.incarnation

        def work(connection: Connection) -> int:
            # A sequence that this store has not come to is another store's: an older copy was put back.
            fits = same and 0 <= request.after_sequence <= bridged.newest(connection)
            after = request.after_sequence if fits else 0
            store.bridge.want(connection, names, after)
            return after

        after = await store.write(work)
        store.bridge.serving += 1
        store.bridge.news.ring()
        return cls(store, names, after, store.bridge.serving)

    async def events(self, is_closing: Callable[[], bool]) -> AsyncIterator[wire.BridgedEvent]:
        """Give the events in commit order, then each as it comes, until there were many, or a newer call was made."""
        bridge, sent = self._store.bridge, 0
        while sent < MOST_SENT and bridge.serving == self._call:
            closing, news, since = is_closing(), bridge.news.next(), self.after
            for event in await self._store.read(lambda connection, since=since: self._page(connection, since)):  # type: ignore[misc]
                self.after = event.sequence
                sent += 1
                yield bridged_message(event, self._store.incarnation)
            if closing:
                return
            if self.after == since:
                await news.wait()

    def _page(self, connection: Connection, since: int) -> list[bridged.BridgedRecord]:
        return list(bridged.after(connection, since, self._names))
