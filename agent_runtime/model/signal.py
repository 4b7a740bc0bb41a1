"""A wake-up that loses nothing: whoever waits takes the event before it looks."""

import asyncio


class Signal:
    """Wakes all who wait for news.

    Take `next()` before you look; if there is nothing yet, wait for the event. What came in between has set it.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event that the next notification sets."""
        return self._event

    def notify(self) -> None:
        """Wake all who wait."""
        due, self._event = self._event, asyncio.Event()
        due.set()
