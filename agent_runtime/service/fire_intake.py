"""Accepting the runner's fires: one call a fire, or a stream of them. One receipt answers each fire.

A receipt that accepts a fire says that its envelope is on disk. Receipts come in the order of the fires, and a fire
that is refused is answered like any other: it ends no stream.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any

from agent_runtime.mailbox.acceptor import Acceptor, Receipt
from agent_runtime.permissions.categories import Categories
from agent_runtime.service.requests import GetCategory, read_again, read_fire
from protos.turnkeeper.v1 import agent_runtime_pb2 as wire
from turnkeeper.errors import Conflict, TurnkeeperError, Unreachable
from turnkeeper.rpc.errors import code_of

MOST_MESSAGES = 64  # of one stream, whose receipts are still to come; a message is bounded by the server
MOST_UNANSWERED = 2048  # fires of one stream that sends one to a message
Begun = tuple[wire.FireRequest, "asyncio.Future[Receipt] | TurnkeeperError"]


class FireIntake:
    """Takes fires from single calls and from streams."""

    def __init__(self, acceptor: Acceptor, categories: Categories) -> None:
        self._acceptor, self._categories = acceptor, categories
        self._refusing = asyncio.Event()

    def refuse(self) -> None:
        """Refuse fires from now on, and end the streams of fires; accepted fires are still reported on."""
        self._refusing.set()

    def check(self) -> None:
        """Raise Unreachable if fires are refused."""
        if self._refusing.is_set():
            raise Unreachable("agent-runtime is stopping")

    async def fire(self, request: wire.FireRequest, _context: Any = None) -> wire.FireReceipt:
        """Take one fire. Raises the error that refuses it."""
        self.check()
        return _receipt(request, await self._queue(request, self._categories.get))

    async def each(self, requests: AsyncIterator[wire.FireRequest]) -> AsyncGenerator[wire.FireReceipt, None]:
        """Take a stream of single fires."""
        singly = ((request,) async for request in requests)
        async with aclosing(self._answered(singly, MOST_UNANSWERED)) as answered:
            async for receipts in answered:
                for receipt in receipts:
                    yield receipt

    async def batches(self, batches: AsyncIterator[wire.FireBatch]) -> AsyncGenerator[wire.ReceiptBatch, None]:
        """Take a stream of messages with many fires each; answer message by message."""
        fires = (batch.fires async for batch in batches)
        async with aclosing(self._answered(fires, MOST_MESSAGES)) as answered:
            async for receipts in answered:
                yield wire.ReceiptBatch(receipts=receipts)

    async def _answered(
        self, groups: AsyncIterator[Sequence[wire.FireRequest]], most: int
    ) -> AsyncGenerator[list[wire.FireReceipt], None]:
        """Yield the receipts of each group; those behind it are read and written meanwhile, up to `most`."""
        accepting: asyncio.Queue[list[Begun] | None] = asyncio.Queue(most)

        async def take() -> None:
            try:
                async for group in groups:
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
        # One look at the categories serves all that came together.
        get_category = cache(self._categories.get)
        begun: list[Begun] = []
        for request in requests:
            try:
                begun.append((request, self._queue(request, get_category)))
            except TurnkeeperError as error:
                begun.append((request, error))
        return begun

    def _queue(self, request: wire.FireRequest, get_category: GetCategory) -> "asyncio.Future[Receipt]":
        try:
            return self._acceptor.queue(read_fire(request, get_category))
        except Conflict as refusal:  # what was accepted before its category went is still a duplicate
            return self._acceptor.queue(read_again(request), refusal=refusal)


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
        turn_id=receipt.trigger.turn_id,
        disposition=wire.FireReceipt.ACCEPTED if receipt.fresh else wire.FireReceipt.DUPLICATE,
    )
