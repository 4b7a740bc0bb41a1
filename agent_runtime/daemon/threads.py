"""The threads in which graphs run what is not async. A tool that hangs in one must hold up nothing but its own turn."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

MOST = 1024  # started as they are needed; one that hangs is lost until the process ends


class Threads(ThreadPoolExecutor):
    """A pool that nobody waits for at its end: a thread cannot be cancelled, only left behind."""

    def __init__(self) -> None:
        super().__init__(max_workers=MOST, thread_name_prefix="graph")

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Take nothing more, and return at once."""
        super().shutdown(wait=False, cancel_futures=True)


def use_threads() -> None:
    """Let the running loop's threads be such: by default there are a few, all of which have to end with the loop."""
    asyncio.get_running_loop().set_default_executor(Threads())
