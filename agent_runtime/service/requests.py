"""Conversion of requests to triggers, and the intake of fires. Only this module checks the fields of requests.

Fires arrive in single calls or in a stream. Each fire gets one receipt, in the order of the fires. If a receipt accepts
a fire, the fire's envelope is on disk. A refused fire also gets a receipt and does not end the stream.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import cache, lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp

from agent_runtime.mailbox.acceptor import Acceptor, Receipt
from agent_runtime.model import trigger as triggers
from agent_runtime.model.fire_envelopes import FireEnvelopes, Stamp
from agent_runtime.model.graphs import Catalog
from agent_runtime.model.turn import Category
from agent_runtime.permissions.categories import Categories
from turnkeeper.bus.envelope import CATCH_UP_POLICIES, FIRE_KINDS, check_text, turn_id_of
from turnkeeper.config.home import AGENT
from turnkeeper.config.json_text import check_configurable, read_object
from turnkeeper.errors import Conflict, Degraded, InvalidInput, NotFound, TurnkeeperError, Unreachable
from turnkeeper.rpc.callers import current
from turnkeeper.rpc.errors import code_of
from turnkeeper.times import EPOCH, LONGEST
from turnkeeper.v1 import agent_runtime_pb2 as wire

CONVERSATION = "conversation"
LONGEST_PROMPT = 1 << 20  # bytes
LONGEST_PAYLOAD = 1 << 20
LONGEST_MESSAGE = 256 << 10
MOST_ATTEMPTS = 1_000_000
_LONGEST_WAIT_S = int(LONGEST.total_seconds())
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~+-]{0,199}", re.ASCII)
_LABEL = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?", re.ASCII)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}", re.ASCII)
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_EARLIEST_S, _LATEST_S = 0, 7_258_118_400  # the years 1970 to 2199
GetCategory = Callable[[str], Category]


def read_fire(request: wire.FireRequest, get_category: GetCategory) -> triggers.Trigger:
    """Convert a fire to a trigger.

    Raises:
        InvalidInput: a field is malformed; `where` names it.
        Conflict: the category does not exist or cannot be used.
    """
    return triggers.Trigger(source="fire", **read_fields(request, get_category)).sealed()


def read_fields(request: wire.FireRequest, get_category: GetCategory) -> dict[str, Any]:
    """Return the fields of a fire by the names of a trigger's fields. Raises the errors of `read_fire`."""
    attempt = _between(request.attempt, 1, MOST_ATTEMPTS, "attempt")
    fire_id = _matching(_ID, request.fire_id, "fire_id")
    catch_up = request.catch_up
    return dict(
        key=triggers.fire_key(fire_id, attempt),
        turn_id=turn_id_of(fire_id, attempt),
        thread_id=read_label(request.thread_id, "thread_id"),
        channel=read_label(request.channel, "channel"),
        agent=_agent(request.agent),
        grant=usable(read_label(request.category, "category"), get_category),
        prompt=_text(request.prompt, LONGEST_PROMPT, "prompt"),
        payload_json=_object(request.payload_json, "payload_json"),
        fire_id=fire_id,
        attempt=attempt,
        task_id=_matching(_ID, request.task_id, "task_id"),
        task_name=read_label(request.task_name, "task_name") if request.task_name else "",
        kind=_one_of(FIRE_KINDS, request.kind, "kind"),
        read_only=request.read_only,
        nominal_at=_required(request, "nominal_at"),
        due_at=_instant(request, "due_at"),
        fired_at=_instant(request, "fired_at"),
        timezone=_zone(request.timezone),
        catch_up=_one_of(CATCH_UP_POLICIES, catch_up.policy, "catch_up.policy") if catch_up.policy else "",
        stands_for=_between(catch_up.count or 1, 1, 1 << 31, "catch_up.count"),
        first_nominal_at=_instant(catch_up, "first_nominal_at", "catch_up."),
        last_nominal_at=_instant(catch_up, "last_nominal_at", "catch_up."),
        traceparent=_matching(_TRACE, request.traceparent, "traceparent") if request.traceparent else "",
        **{name: _between(getattr(request, name), 0, _LONGEST_WAIT_S, name) for name in triggers.ON_APPROVALS},
        **_of_graph(request),
    )


def read_again(request: wire.FireRequest) -> triggers.Trigger:
    """Convert a fire to a trigger without looking up its category. The result is valid for comparison, not for running.

    Its digest equals that of the accepted fire, because a grant is not part of the digest.

    Raises:
        InvalidInput: a field is malformed; `where` names it.
    """
    return read_fire(request, lambda name: Category(name=name))


def read_message(
    request: wire.SendMessageRequest, get_category: GetCategory, *, channel: str, thread_id: str, request_id: str
) -> triggers.Trigger:
    """Convert an author's message to a thread of a channel to a trigger. Raises InvalidInput, Conflict."""
    text = _text(request.text, LONGEST_MESSAGE, "text")
    if not text.strip() and not request.run_json:
        raise InvalidInput("is empty", where="text")
    return triggers.Trigger(
        source="message",
        key=triggers.message_key(request_id),
        turn_id=turn_id_of("message", request_id),
        thread_id=thread_id,
        channel=channel,
        agent=_agent(request.agent),
        grant=usable(read_label(request.category or CONVERSATION, "category"), get_category),
        prompt=text,
        kind=triggers.ASIDE if request.keep_loop else "",
        via=str(current()),
        **_of_graph(request),
    ).sealed()


def read_request_id(text: str) -> str:
    """Return a validated request id. Raises InvalidInput."""
    return _matching(_ID, text, "request_id")


def read_label(text: str, field: str) -> str:
    """Return a valid name: 1 to 128 printable ASCII characters, unlike a path. Raises InvalidInput."""
    label = _matching(_LABEL, text, field)
    if "/" in label or ".." in label:
        raise InvalidInput(f"{label!r} looks like a path", where=field)
    return label


def usable(name: str, get_category: GetCategory) -> Category:
    """Return a category that is usable now. Raises Conflict."""
    try:
        return get_category(name)
    except (NotFound, InvalidInput) as error:
        raise Conflict(error.what, where="category", hint=error.hint) from error


def _agent(name: str) -> str:
    """Return an agent's name. The runtime need not host the agent: other agents read their inbox in a terminal."""
    found = _matching(AGENT, name or triggers.FIRST_AGENT, "agent")
    if found in triggers.NOT_AGENTS:
        raise InvalidInput(f"{found} has no inbox", where="agent")
    return found


def _matching(pattern: re.Pattern[str], text: str, field: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidInput(f"{text[:40]!r} is not valid" if text else "is required", where=field)
    return text


def _one_of(known: Collection[str], text: str, field: str) -> str:
    if text not in known:
        hint = f"one of {', '.join(sorted(known))}"
        raise InvalidInput(f"{text[:40]!r} is not valid" if text else "is required", where=field, hint=hint)
    return text


def _between(value: int, least: int, most: int, field: str) -> int:
    if not least <= value <= most:
        raise InvalidInput(f"{value} is not between {least} and {most}", where=field)
    return value


def _text(text: str, longest: int, field: str) -> str:
    if len(text.encode()) > longest:
        raise InvalidInput(f"is longer than {longest} bytes", where=field)
    try:
        check_text(text)
    except InvalidInput as error:
        raise InvalidInput(error.what, where=field) from error
    return text


def _object(text: str, field: str) -> str:
    if text:
        found = read_object(text, where=field, longest=LONGEST_PAYLOAD)
        if field in {"context_json", "config_json"}:
            check_configurable(found, field)
    return text


def input_of(request: wire.FireRequest, get_category: GetCategory) -> triggers.Trigger:
    """Return a trigger with only its category and the fields that its graph reads. Raises InvalidInput or NotFound."""
    unknown: dict[str, Any] = dict.fromkeys(("key", "turn_id", "channel", "agent"), "")
    payload = _object(request.payload_json, "payload_json")
    read = {"thread_id": request.thread_id, "prompt": request.prompt, "payload_json": payload}
    grant = get_category(request.category) if request.category else Category(name="")
    return triggers.Trigger(source="fire", grant=grant, **unknown | read | _of_graph(request))


def _of_graph(request: wire.FireRequest | wire.SendMessageRequest) -> dict[str, Any]:
    graph = read_label(request.graph, "graph") if request.graph else ""
    return {name: graph if name == "graph" else _object(getattr(request, name), name) for name in triggers.OF_GRAPH}


def _required(request: wire.FireRequest, field: str) -> datetime:
    at = _instant(request, field)
    if at is None:
        raise InvalidInput("is required", where=field)
    return at


def _instant(message: wire.FireRequest | wire.CatchUp, field: str, prefix: str = "") -> datetime | None:
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    at: Timestamp = getattr(message, field)
    seconds, nanos = at.seconds, at.nanos
    if not (_EARLIEST_S <= seconds < _LATEST_S and 0 <= nanos < 1_000_000_000):
        raise InvalidInput("is not an instant from 1970 up to 2200", where=f"{prefix}{field}")
    return _moment(seconds, nanos // 1000)


@lru_cache(maxsize=1024)
def _moment(seconds: int, microseconds: int) -> datetime:
    """Return an instant from a cache, because fires that are due together share most instants."""
    return EPOCH + timedelta(seconds=seconds, microseconds=microseconds)


@lru_cache(maxsize=1024)
def _zone(name: str) -> str:
    if not name:
        return ""
    try:
        ZoneInfo(_matching(_ZONE, name, "timezone"))
    except (ValueError, OSError, KeyError) as error:
        raise InvalidInput(f"unknown timezone {name[:40]!r}", where="timezone") from error
    return name


MOST_MESSAGES = 64  # messages of one stream without receipts; the server limits their size
MOST_UNANSWERED = 2048  # pending fires of one stream with one fire per message
Begun = tuple[wire.FireRequest, "asyncio.Future[Receipt] | TurnkeeperError"]


class FireIntake:
    """The intake of fires from single calls and from streams."""

    def __init__(self, acceptor: Acceptor, categories: Categories, catalog: Catalog) -> None:
        self._acceptor, self._categories, self._catalog = acceptor, categories, catalog
        self._envelopes = FireEnvelopes()
        self._refusing = asyncio.Event()

    def refuse(self) -> None:
        """Refuse fires from now on, and end the streams of fires; accepted fires are still reported."""
        self._refusing.set()

    def check(self) -> None:
        """Raise Unreachable if fires are refused."""
        if self._refusing.is_set():
            raise Unreachable("agent-runtime is stopping")

    async def fire(self, request: wire.FireRequest, _context: Any = None) -> wire.FireReceipt:
        """Accept one fire. Raises the error that refuses the fire."""
        self.check()
        (stamp,) = self._acceptor.stamps(1)
        return _receipt(request, await self._queue(request, self._categories.get, stamp))

    async def each(self, requests: AsyncIterator[wire.FireRequest]) -> AsyncGenerator[wire.FireReceipt, None]:
        """Accept a stream of single fires."""
        singly = ((request,) async for request in requests)
        async with aclosing(self._answered(singly, MOST_UNANSWERED)) as answered:
            async for receipts in answered:
                for receipt in receipts:
                    yield receipt

    async def batches(self, batches: AsyncIterator[wire.FireBatch]) -> AsyncGenerator[wire.ReceiptBatch, None]:
        """Accept a stream of messages with many fires each; answer message by message."""
        fires = (batch.fires async for batch in batches)
        async with aclosing(self._answered(fires, MOST_MESSAGES)) as answered:
            async for receipts in answered:
                yield wire.ReceiptBatch(receipts=receipts)

    async def _answered(
        self, groups: AsyncIterator[Sequence[wire.FireRequest]], most: int
    ) -> AsyncGenerator[list[wire.FireReceipt], None]:
        """Yield the receipts of each group. Meanwhile, read and write up to `most` later fires."""
        accepting: asyncio.Queue[list[Begun] | None] = asyncio.Queue(most)

        async def take() -> None:
            try:
                async for group in groups:
                    await self._acceptor.opened()
                    await accepting.put(self._begin(group))
            except Exception:
                await accepting.put(None)
                raise
            await accepting.put(None)

        async def refuse() -> None:
            await self._refusing.wait()
            taking.cancel()
            await accepting.put(None)

        taking = asyncio.create_task(take(), name="fire-stream")
        refusing = asyncio.create_task(refuse(), name="fire-stream-end")
        try:
            while (begun := await accepting.get()) is not None:
                yield [await _answer(*item) for item in begun]
            if not taking.cancelling():
                await taking
        finally:
            taking.cancel()
            refusing.cancel()

    def _begin(self, requests: Sequence[wire.FireRequest]) -> list[Begun]:
        # One look-up of the categories, and one generation of ids, serve all fires of a batch.
        get_category, stamps = cache(self._categories.get), self._acceptor.stamps(len(requests))
        begun: list[Begun] = []
        for request, stamp in zip(requests, stamps, strict=True):
            try:
                begun.append((request, self._queue(request, get_category, stamp)))
            except TurnkeeperError as error:
                begun.append((request, error))
        return begun

    def _queue(self, request: wire.FireRequest, get_category: GetCategory, stamp: Stamp) -> "asyncio.Future[Receipt]":
        try:
            fields = read_fields(request, get_category)
            self._catalog.require(request.graph)
        except Conflict as refusal:  # an accepted fire stays a duplicate even after its category or graph was removed
            return self._acceptor.queue(read_again(request), refusal=_passing(refusal))
        ready = self._envelopes.encode(fields, stamp)
        if ready is None:
            return self._acceptor.queue(triggers.Trigger(source="fire", **fields).sealed())
        return self._acceptor.queue_encoded(ready)


def _passing(refusal: Conflict) -> TurnkeeperError:
    """Return the error for a refused fire; it is temporary if a repaired or restored category file may resolve it."""
    if refusal.where != "category":
        return refusal
    return Degraded(refusal.what, where=refusal.where, hint=refusal.hint)


async def _answer(
    request: wire.FireRequest, accepting: "asyncio.Future[Receipt] | TurnkeeperError"
) -> wire.FireReceipt:
    try:
        if isinstance(accepting, TurnkeeperError):
            raise accepting
        return _receipt(request, await accepting)
    except TurnkeeperError as error:
        refused = wire.FireError(code=code_of(error), message=error.what, field=error.where)
        return wire.FireReceipt(fire_id=request.fire_id, attempt=request.attempt, error=refused)


def _receipt(request: wire.FireRequest, receipt: Receipt) -> wire.FireReceipt:
    return wire.FireReceipt(
        fire_id=request.fire_id,
        attempt=request.attempt,
        turn_id=receipt.header.turn_id,
        disposition=wire.FireReceipt.ACCEPTED if receipt.fresh else wire.FireReceipt.DUPLICATE,
    )
