"""What the tasks of event loops wait for, because the traceback of a test that takes too long shows only its loop."""

import asyncio
import gc
from collections.abc import Iterator
from typing import Any


def waits() -> str:
    """Return where each task of this process stands that has not ended, and where each coroutine that it waits for."""
    tasks = [one for one in gc.get_objects() if type(one) is asyncio.Task and not one.done()]
    chains = [" > ".join(_places(task.get_coro())) for task in tasks]
    return "\n".join(sorted({f"{chains.count(chain)} x {chain}" for chain in chains}))


def _places(awaited: Any) -> Iterator[str]:
    """Yield where a coroutine stands, and where each one stands that it waits for."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        if frame:
            yield f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None)
