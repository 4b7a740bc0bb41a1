"""How a process follows the commits of other processes: by notifications, and by the numbers of rows.

A row gets its number when it is written, and is visible after its commit. So a reader that asks for the rows after a
number would skip a row that is committed later than a row with a higher number. The reader waits at a missing number
until the transaction that may have drawn it has ended. Each writer draws its transaction id before a number
(:func:`turnkeeper.storage.statements.number_after_id`), so that id is below the end of every snapshot that lacks the
row and has a higher number. Once a snapshot begins at or after that end, the row is visible or will never exist.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import sqlalchemy as sa

from turnkeeper.clock import Clock
from turnkeeper.storage.server.handover import LOOK_S, NEWS, OUTCOMES
from turnkeeper.storage.statements import Statement

_SPAN: list[Any] = [
    sa.literal_column(f"pg_snapshot_{bound}(pg_current_snapshot())::text::bigint").label(bound)
    for bound in ("xmin", "xmax")
]
_NOW = Statement(sa.select(*_SPAN))


class Holes:
    """The missing numbers that one reader has met in the rows of one query of a server."""

    def __init__(self) -> None:
        self._seen = 0, 0  # the highest number of an earlier look, and the end of its snapshot
        self._spanned: Statement | None = None  # the query with the span of its snapshot

    def read(
        self, statement: Statement, connection: sa.Connection, sequence: int, **values: Any
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the rows after a number, and the number up to which no further row can appear."""
        self._spanned = self._spanned or Statement(statement.statement.add_columns(*_SPAN))
        rows = self._spanned.dicts(connection, sequence=sequence, **values)
        spans = [(row.pop("xmin"), row.pop("xmax")) for row in rows]
        return rows, self.reached(sequence, [row["sequence"] for row in rows], *spans[0]) if rows else sequence

    def reached(self, after: int, numbers: Sequence[int], begin: int, end: int) -> int:
        """Return the number up to which no row is missing in a snapshot, nor can appear later."""
        last, (known, since) = numbers[-1], self._seen
        if has_ended := begin >= since:  # each transaction whose row the earlier look may have missed
            after = max(after, min(known, last))
        for number in numbers:
            after = number if number == after + 1 else after
        after = last if begin >= end else after  # no transaction is open
        if has_ended and after < last:
            self._seen = last, end
        return after

    def settled(self, statement: Statement, connection: sa.Connection, *, sequence: int, **values: Any) -> list[Any]:
        """Return the rows after a number, up to the first missing row that may still appear."""
        rows, reached = self.read(statement, connection, sequence, **values)
        return [row for row in rows if row["sequence"] <= reached]


class Settled:
    """The position of a reader that shows turns at once, and reads them again while a turn may appear before them."""

    def __init__(self, limit: int, begin: int) -> None:
        """Take the most turns of the first look, and the lowest number that the reader wants."""
        self._limit, self._begin = limit, begin
        self._position, self._seen, self._before = -1, (-1, 0), 0

    def __call__(self, connection: sa.Connection, changed: Any) -> int:
        """Return the position for the next look. Call this after the turns were read, in the same unit."""
        if self._position < 0:  # a turn below the shown ones is not wanted if there were enough of them
            numbers = [turn.number for turn in changed.shown]
            lowest = min(numbers) - 1 if len(numbers) >= self._limit else 0
            self._seen = max(lowest, self._begin - 1, 0), 0
        before, (self._before, end) = self._before, _NOW.rows(connection)[0]
        if before >= self._seen[1]:
            self._position, self._seen = self._seen[0], (changed.newest, end)
        return self._position


def tell(connection: sa.Connection, channel: str, said: str) -> None:
    """Send a notification of at most 7,999 bytes to the listeners of a channel."""
    connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (channel, said))


async def listen(
    url: str,
    on_news: Callable[[str, str], None],
    on_trouble: Callable[[str], None],
    clock: Clock,
    channels: Collection[str] = (NEWS, OUTCOMES),
) -> None:
    """Call `on_news` with the channel and the text of each notification, until cancelled.

    Also call it first and each second with empty texts, in case a notification was lost. Without channels, do
    only that.
    """
    while True:
        if channels:
            await _heard(url, on_news, on_trouble, channels)
        on_news("", "")
        await clock.sleep(LOOK_S)


async def _heard(
    url: str, on_news: Callable[[str, str], None], on_trouble: Callable[[str], None], channels: Collection[str]
) -> None:
    import psycopg  # noqa: PLC0415  only where a server is used

    try:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            for channel in channels:
                await connection.execute(f'LISTEN "{channel}"'.encode())
            on_news("", "")
            while True:
                async for news in connection.notifies(timeout=LOOK_S):
                    on_news(news.channel, news.payload)
                on_news("", "")
    except psycopg.Error as error:
        on_trouble(f"{type(error).__name__}: {error}"[:300])
