"""Pages of lists: the total number of rows, a filter by status, and a cursor for the next page.

A cursor names the last row of its page, so inserted or deleted rows do not shift the pages. If that row was deleted,
the reader gets an error and starts again.
"""

import base64
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from turnkeeper.errors import Conflict, InvalidInput

T = TypeVar("T")
_FIRST = "row "


def after(key: object) -> str:
    """Return the cursor of the page after the row with this key. Clients treat it as opaque."""
    return base64.urlsafe_b64encode(f"{_FIRST}{key}".encode()).decode()


def key_at(cursor: str) -> str:
    """Return the key of the row at a cursor. Raises InvalidInput.

    >>> key_at(after("c-12ab"))
    'c-12ab'
    """
    with suppress(ValueError):
        text = base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
        if text.startswith(_FIRST):
            return text.removeprefix(_FIRST)
    raise InvalidInput(f"{cursor[:60]!r} is not a cursor", where="cursor", hint="pass the cursor of the previous page")


def page_of(
    found: Sequence[T],
    key: str,
    *,
    limit: int,
    cursor: str,
    status: str = "",
    of: str = "",
    known: Collection[str] = (),
) -> tuple[Sequence[T], dict[str, Any]]:
    """Return the rows of a page, and the answer's fields `total` and `next_cursor`.

    Args:
        found: all rows in order: objects or mappings.
        limit: maximum number of rows; 0 for all.
        cursor: the end of the previous page; empty for the first page.
        status: return only rows of this status; empty for all.
        of: the name of the field that contains the status of a row.

    Raises:
        InvalidInput: the cursor or the status is not valid.
        Conflict: the last row of the previous page was deleted.
    """
    if status and status not in known:
        hint = f"use one of: {', '.join(sorted(known))}"
        raise InvalidInput(f"no row here can have the status {status[:40]!r}", where="status", hint=hint)
    rows = [row for row in found if not status or str(_value(row, of)) == status]
    begin = 0
    if cursor:
        last = key_at(cursor)
        begin = next((number for number, row in enumerate(rows, 1) if str(_value(row, key)) == last), 0)
        if not begin:
            what = f"the row {last[:80]!r}, the last of the previous page, is gone"
            raise Conflict(what, where="cursor", hint="list again from the beginning")
    shown = rows[begin : begin + limit] if limit else rows[begin:]
    ends = begin + len(shown) == len(rows)
    return shown, {"total": len(rows), "next_cursor": "" if ends else after(_value(shown[-1], key))}


def _value(row: Any, name: str) -> object:
    return row[name] if isinstance(row, dict) else getattr(row, name)
