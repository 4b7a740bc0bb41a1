"""Waking whoever waits for news, without losing any."""

import asyncio


class Bell:
    """Take `next()` before you look; if there is nothing yet, wait for it: what came in between has set it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event that the next ring sets."""
        return self._event

    def ring(self) -> None:
        """Wake all who wait."""
        rung, self._event = self._event, asyncio.Event()
        rung.set()
