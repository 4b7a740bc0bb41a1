"""A wake-up signal that loses no notification, because each waiter gets the event before it checks for news."""

import asyncio


class Signal:
    """A signal that wakes all waiters when there is news.

    Call `next()` before you check for news; if there is none, wait for the event. Later notifications set the event.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return the event that the next notification sets."""
        return self._event

    def notify(self) -> None:
        due, self._event = self._event, asyncio.Event()
        due.set()
