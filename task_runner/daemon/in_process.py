"""One operation on the store in this process, under the process's lock: for commands while no daemon runs."""

import asyncio
from typing import Any

from task_runner.daemon.assembly import PROCESS, assemble
from task_runner.service.servicer import METHODS
from turnkeeper.config.home import Home
from turnkeeper.storage.locking import ProcessLock


def call(home: Home, method: str, request: Any) -> Any:
    """Run one of the service's operations, named as on the wire. Raises what it raises, and Conflict for the lock."""
    home.create()
    with ProcessLock(home, PROCESS):
        return asyncio.run(_call(home, method, request))


async def _call(home: Home, method: str, request: Any) -> Any:
    async with assemble(home, daemon=False) as runner:
        return await getattr(runner.service, METHODS[method])(request)
