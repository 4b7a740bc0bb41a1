"""A progress bar on stderr, for work that turns out to take more than a second."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from turnkeeper.clock import Clock, SystemClock

AFTER_S = 1.0


@contextmanager
def bar(
    what: str, total: int, *, clock: Clock | None = None, out: Console | None = None
) -> Iterator[Callable[[int], None]]:
    """Give a function that counts what is done; shown as a bar after a second, if stderr is a terminal.

    Args:
        what: a word or two before the bar.
        total: how much there is to do.
        clock: the machine's, unless a test passes another.
        out: likewise; stderr.
    """
    clock, out = clock or SystemClock(), out or Console(file=sys.stderr)
    began, done = clock.monotonic(), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with ExitStack() as shown:
        progress: Progress | None = None

        def count(more: int) -> None:
            nonlocal progress, done
            done += more
            if progress is None and out.is_terminal and clock.monotonic() - began > AFTER_S:
                progress = shown.enter_context(Progress(*columns, console=out, transient=True))
                progress.add_task(what, total=total)
            if progress is not None:
                progress.update(progress.task_ids[0], completed=done)

        yield count
