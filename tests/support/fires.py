"""Fires sent to a runtime as the runner sends them: in batches."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from turnkeeper.rpc.errors import error_of
from turnkeeper.v1 import agent_runtime_pb2 as wire


class _Call:
    async def send_initial_metadata(self, _metadata: object) -> None:
        """Accept the initial metadata."""


async def accept(service: Any, request: wire.FireRequest) -> wire.FireReceipt:
    """Send one fire. Return its receipt, or raise the error that refuses it."""

    async def messages() -> AsyncIterator[wire.FireBatch]:
        yield wire.FireBatch(fires=[request])

    async with aclosing(service.FireBatches(messages(), _Call())) as answers:
        (receipt,) = [receipt async for answer in answers for receipt in answer.receipts]
    if receipt.HasField("error"):
        raise error_of(receipt.error.code, receipt.error.message, where=receipt.error.field)
    return receipt
