"""Showing a list again and again."""

from collections.abc import Callable

from turnkeeper import console
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Conflict, Unreachable


def watch(show: Callable[[], None], clock: SystemClock, every_s: float) -> None:
    """Show something again every few seconds, until interrupted; a runner that is away for a moment ends nothing."""
    while True:
        clock.block(every_s)
        console.console().clear()
        try:
            show()
        except (Unreachable, Conflict) as away:  # Conflict: another process opened the store just now
            console.note(str(away))
