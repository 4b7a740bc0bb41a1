"""Pages of lists: how many rows there are in all, those of a status, and a cursor at which the next page begins.

A cursor names the last row of its page, so rows that come or go elsewhere shift nothing. Where that row is gone the
reader is told, and begins anew.
"""

import base64
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from turnkeeper.errors import Conflict, InvalidInput

T = TypeVar("T")
_FIRST = "row "


def after(key: object) -> str:
    """Return the cursor behind the row of that key, opaque to whoever passes it on."""
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
    raise InvalidInput(f"{cursor[:60]!r} is no cursor", where="cursor", hint="pass the one that the page before gave")


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
    """Return the rows of a page, and `total` and `next_cursor` as an answer has them.

    Args:
        found: all rows, in their order: objects, or mappings.
        key: the name of the field that tells one from the others.
        limit: most rows of the page; 0 for all.
        cursor: where the page before ended; empty for the first.
        status: only rows of this status; empty for all.
        of: the name of the field that holds a row's status.
        known: all statuses that there are.

    Raises:
        InvalidInput: that is no cursor, or no status.
        Conflict: the row at which the page before ended is gone.
    """
    if status and status not in known:
        hint = f"there are {', '.join(sorted(known))}"
        raise InvalidInput(f"nothing here has the status {status[:40]!r}", where="status", hint=hint)
    rows = [row for row in found if not status or str(_value(row, of)) == status]
    begin = 0
    if cursor:
        last = key_at(cursor)
        begin = next((number for number, row in enumerate(rows, 1) if str(_value(row, key)) == last), 0)
        if not begin:
            what = f"the row {last[:80]!r}, with which the page before ended, is gone"
            raise Conflict(what, where="cursor", hint="list again from the beginning")
    shown = rows[begin : begin + limit] if limit else rows[begin:]
    ends = begin + len(shown) == len(rows)
    return shown, {"total": len(rows), "next_cursor": "" if ends else after(_value(shown[-1], key))}


def _value(row: Any, name: str) -> object:
    return row[name] if isinstance(row, dict) else getattr(row, name)
