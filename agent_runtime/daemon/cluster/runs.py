"""Notifications of the database that carry the text and events of turns to the machines that follow the turns."""

import asyncio
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from agent_runtime.graph.engine.model_output import GraphReport, LiveOutput, OutputPiece, RunningCall
from turnkeeper.clock import Clock
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.server.handover import FOLLOWED, WORDS

FOLLOW_S = 1.0  # time between two announcements of followed channels
IDLE_S = 3600.0
FOLLOWED_S = 5.0  # lifetime of an announcement
PIECE_S = 0.1  # time between two pieces
LONGEST_PIECE = 500  # characters: at most twelve bytes each, as JSON
LONGEST_ARGS = 6000  # bytes of a call's arguments; longer arguments are omitted
RUNS = "turnkeeper_runs"  # the channel for notices that a client follows a run, and for the run's events
LONGEST_EVENT = 256 << 10  # characters; a longer event is omitted, and the reader gets the state at the end
LONGEST_PART = 4000  # characters; the rest of a notification is for names
MOST_PARTS = 32  # the most notifications in a transaction


class RunRelay:
    """Relay of run events: it sends the events of this machine's turns to followers, and receives theirs.

    Each second, a follower announces the threads that it follows, and the newest turn that it knows of each. It
    receives what happened after that or, if this machine did not run that turn, the running interval.
    """

    def __init__(
        self, events: Callable[[], Any], tell: Callable[..., Awaitable[object]], clock: Clock, *, node: str
    ) -> None:
        """`events` returns the rings, or None; `tell` sends texts on a channel; `node` is this process's name."""
        self._events, self._tell, self._clock, self._node = events, tell, clock, node
        self._asked: dict[
            tuple[str, str], tuple[float, int, str, str]
        ] = {}  # by thread, node: until, since, known turn
        self._passing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._parts: dict[tuple[str, str], list[str]] = {}

    async def run(self) -> None:
        """Announce the threads that are followed here, until cancelled."""
        if (events := self._events()) is None:
            return
        events.relayed = True
        try:
            while True:
                news, followed = events.read.next(), events.followed()
                said = [
                    {"thread": of, "since": one.since, "awaited": one.known[0], "state": one.known[1]}
                    for of, one in followed.items()
                ]
                await self._say(said)
                await self._clock.wait(news, FOLLOW_S if followed else IDLE_S)
        finally:
            for task in self._passing.values():
                task.cancel()

    def heard(self, said: str) -> None:
        """Process a notification."""
        told, events = json.loads(said), self._events()
        key = told["thread"], told["node"]
        if events is None or told["node"] == self._node:
            return
        if "since" in told:
            known = told["awaited"], told.get("state", "")  # a machine of an earlier version sends no state
            self._asked[key] = self._clock.monotonic() + FOLLOWED_S, told["since"], *known
            if key not in self._passing:
                self._passing[key] = asyncio.create_task(self._pass_on(*key), name=f"pass-on-run-{key[0]}")
                self._passing[key].add_done_callback(lambda _task: self._passing.pop(key, None))
        elif told["to"] == self._node:
            parts = self._parts.pop(key, []) if told["part"] else []
            if len(parts) == told["part"]:
                parts.append(told["text"])
                self._parts[key] = parts
            if len(parts) == told["of"]:
                events.hear(*key, *json.loads(zlib.decompress(b64decode("".join(self._parts.pop(key))))))

    async def _pass_on(self, thread_id: str, to: str) -> None:
        since = after = last = 0
        while (asked := self._asked[thread_id, to])[0] > self._clock.monotonic():
            ring = self._events().ring(thread_id)
            news = ring.changed.next()
            if since != asked[1]:
                since, last = asked[1], 0
                after = ring.unknown_from(*asked[2:])
            said = []
            for one in ring.after(after):
                if not one.sender:
                    said += _parts(thread_id, to, (last, asdict(one))) if len(one.data_json) <= LONGEST_EVENT else []
                    last = one.number
            after = ring.number
            await self._say(said)
            await self._clock.sleep(PIECE_S if said else 0)
            await self._clock.wait(news, FOLLOW_S)
        del self._asked[thread_id, to]

    async def _say(self, said: Sequence[dict[str, Any]]) -> None:
        texts = [json.dumps({"node": self._node, **one}) for one in said]
        with suppress(TurnkeeperError):  # the server does not answer, so the reader gets the state from the store
            for start in range(0, len(texts), MOST_PARTS):
                await self._tell(RUNS, *texts[start : start + MOST_PARTS])


def _parts(thread_id: str, to: str, told: Any) -> list[dict[str, Any]]:
    text = b64encode(zlib.compress(json.dumps(told).encode())).decode()
    texts = [text[start : start + LONGEST_PART] for start in range(0, len(text), LONGEST_PART)]
    about = {"thread": thread_id, "to": to, "of": len(texts)}
    return [about | {"part": number, "text": text} for number, text in enumerate(texts)]


class Relay:
    """Relay of text, which sends the text of this machine's turns to machines that follow them, and receives theirs.

    A follower announces itself each second. Lost text arrives later with the turn, from the store.
    """

    def __init__(self, live: LiveOutput, tell: Callable[..., Awaitable[object]], clock: Clock, *, node: str) -> None:
        """`tell` sends text on a notification channel; `node` is this process's name among the machines."""
        self._live, self._tell, self._clock, self._node = live, tell, clock, node
        self._until: dict[str, float] = {}
        self._passing: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Announce the channels that are followed here, until cancelled."""
        try:
            while True:
                news = self._live.read.next()
                for channel in list(self._live.readers):
                    await self._say(FOLLOWED, {"channel": channel})
                await self._clock.wait(news, FOLLOW_S if self._live.readers else IDLE_S)
        finally:
            for task in self._passing.values():
                task.cancel()

    def heard(self, channel: str, said: str) -> None:
        """Process a notification."""
        if channel not in {FOLLOWED, WORDS} or (told := json.loads(said))["node"] == self._node:
            return
        of = told["channel"]
        if channel == WORDS:
            self._live.hear(of, _heard_piece(told["piece"]))
            return
        self._until[of] = self._clock.monotonic() + FOLLOWED_S
        if of not in self._passing:
            self._passing[of] = asyncio.create_task(self._pass_on(of), name=f"pass-on-{of}")
            self._passing[of].add_done_callback(lambda _task: self._passing.pop(of, None))

    async def _pass_on(self, channel: str) -> None:
        with self._live.listen(channel, passes_on=True) as listener:
            while self._until[channel] > self._clock.monotonic():
                news = listener.changed.next()
                for piece in listener.news(lambda _turn_id, _after: True):
                    for part in _pieces(piece):
                        await self._say(WORDS, {"channel": channel, "piece": asdict(part)})
                        await self._clock.sleep(PIECE_S)
                await self._clock.wait(news, FOLLOW_S)

    async def _say(self, channel: str, what: Mapping[str, Any]) -> None:
        with suppress(TurnkeeperError):  # the server does not answer, so the reader gets the text from the store
            await self._tell(channel, json.dumps({"node": self._node, **what}))


def _pieces(piece: OutputPiece) -> Iterator[OutputPiece]:
    """Split a piece into pieces that fit into a notification."""
    for number in range(0, len(piece.text), LONGEST_PIECE):
        text = piece.text[number : number + LONGEST_PIECE]
        yield replace(piece, offset=piece.offset + number, text=text, calls=(), reports=())
    end = replace(piece, offset=piece.offset + len(piece.text), text="", calls=(), reports=())
    for call in piece.calls:
        short = len(json.dumps(call.args_json)) <= LONGEST_ARGS
        yield replace(end, calls=(call if short else replace(call, args_json="{}"),))
    yield from (replace(end, reports=(replace(one, text=one.text[:LONGEST_PIECE]),)) for one in piece.reports)


def _heard_piece(told: dict[str, Any]) -> OutputPiece:
    calls, reports = told.pop("calls"), told.pop("reports")
    return OutputPiece(
        **told,
        calls=tuple(RunningCall(**call) for call in calls),
        reports=tuple(GraphReport(**report) for report in reports),
    )
