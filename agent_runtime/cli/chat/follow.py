"""Following a conversation over restarts of the runtime: turns in their newest form, and what they say meanwhile."""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agent_runtime.cli.chat.screen import View
from agent_runtime.cli.client import held, runtime
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import TurnkeeperError, Unreachable

AGAIN_S = 0.5
MOST_WAITING = 256  # turns and pieces read and not shown yet; the runtime then sends fewer and longer pieces


@dataclass(frozen=True)
class Lost:
    """The runtime does not answer; it is asked again until it does."""


@dataclass(frozen=True)
class Found:
    """The runtime answers again."""


Event = wire.ConversationTurn | Lost | Found | TurnkeeperError


class Following:
    """Follows a channel in a thread of its own; `next` gives what came, in order."""

    def __init__(self, channel: str, *, limit: int, live: bool, on_event: Callable[[], object] | None = None) -> None:
        """`on_event` is called, in the thread that follows, when something came."""
        self._on_event = on_event
        self._request = wire.WatchConversationRequest(channel=channel, limit=limit, live=live)
        self._waiting: queue.Queue[Event] = queue.Queue(MOST_WAITING)
        self._over = threading.Event()
        self._caller: Any = None
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Begin. The thread ends with the process at the latest."""
        self._thread.start()

    def stop(self) -> None:
        """Follow no longer; return when the thread has ended."""
        self._over.set()
        if (caller := self._caller) is not None:
            caller.close()
        self._thread.join()

    def next(self, timeout_s: float | None = None) -> Event | None:
        """Return what came next; None when nothing came in time."""
        try:
            return self._waiting.get(timeout_s != 0.0, timeout_s)
        except queue.Empty:
            return None

    def show(self, view: View, timeout_s: float) -> bool:
        """Show what came next; return whether anything came in time. Raises what the runtime refuses with."""
        event = self.next(timeout_s)
        if isinstance(event, TurnkeeperError):
            raise event
        if isinstance(event, Lost):
            view.tell("agent-runtime does not answer; waiting for it")
        elif isinstance(event, Found):
            view.tell("agent-runtime answers again")
        elif event is not None:
            view.take(event)
        return event is not None

    def _run(self) -> None:
        for event in self._events():
            while not self._over.is_set():
                try:
                    self._waiting.put(event, timeout=AGAIN_S)
                except queue.Full:
                    continue  # the reader is slow: the runtime sends no more until it has caught up
                break
            if self._on_event is not None and not self._over.is_set():
                self._on_event()

    def _events(self) -> Iterator[Event]:
        lost, shown = False, False
        while not self._over.is_set():
            try:
                for turn in self._watch():
                    if lost:
                        yield Found()
                    lost, shown = False, True
                    yield turn
            except Unreachable:
                pass
            except TurnkeeperError as error:
                if not self._over.is_set():
                    yield error
                return
            if not lost:
                yield Lost()
                if not shown:
                    yield from self._stored()
            lost = shown = True
            self._over.wait(AGAIN_S)

    def _watch(self) -> Iterator[wire.ConversationTurn]:
        caller = self._caller = runtime()
        if self._over.is_set():
            return
        try:
            yield from caller.WatchConversation(self._request)
        finally:
            caller.close()

    def _stored(self) -> Iterator[wire.ConversationTurn]:
        asked = wire.GetConversationRequest(channel=self._request.channel, limit=self._request.limit)
        found: Any = held("GetConversation", asked)
        yield from found.turns
