"""The re-validation queue: pages whose sources changed, until a turn has compared each page with its source.

Links run from a page to its sources. A changed page queues all pages derived from it, directly or through other pages.
Only the submit boundary calls the functions that write.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, update

from agent_runtime.model.mapping import from_row
from agent_runtime.store.schema import page_links, pages, revalidations
from turnkeeper.errors import InvalidInput, NotFound
from turnkeeper.times import to_us

MOST_DEPENDENTS = 1_000  # limit for readers; a change queues all pages
RESULTS = ("holds", "deviation", "candidate")


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """A turn's verdict on an item: the page still holds, contradicts its source, or has a proposed change."""

    item_id: str
    result: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A page to be compared with its source.

    Attributes:
        item_id: `r-` and a number, higher for later items.
        cause: the page that changed.
        cause_version: the new version of `cause`.
        via: the page's own source on the path to `cause`; `cause` itself for a direct source.
        state: waiting, settled, or replaced by a newer item.
        result: for a settled item: holds, deviation or candidate.
    """

    item_id: str
    page_id: str
    cause: str
    cause_version: int
    via: str
    state: str
    result: str
    turn_id: str
    note: str
    queued_at: datetime
    settled_at: datetime | None


def set_links(connection: Connection, page_id: str, sources: Iterable[tuple[str, int]]) -> None:
    """Set the sources of a page and their versions; a page is not its own source."""
    connection.execute(delete(page_links).where(page_links.c.page_id == page_id))
    rows = [
        {"page_id": page_id, "source": source, "page_version": version}
        for source, version in sources
        if source != page_id
    ]
    if rows:
        connection.execute(insert(page_links), rows)


def add_links(connection: Connection, page_id: str, sources: Iterable[tuple[str, int]]) -> None:
    """Add sources of a page, or newer versions of its sources; keep existing links."""
    had = connection.execute(select(page_links).where(page_links.c.page_id == page_id)).all()
    set_links(connection, page_id, ({row.source: row.page_version for row in had} | dict(sources)).items())


def links_of(connection: Connection, page_id: str) -> tuple[str, ...]:
    """Return the sources of a page: `page@version`, or a web address."""
    query = select(page_links).where(page_links.c.page_id == page_id).order_by(page_links.c.source)
    found = connection.execute(query).all()
    return tuple(f"{row.source}@{row.page_version}" if row.page_version else row.source for row in found)


def derived_from(connection: Connection, page_id: str, *, most: int | None = None) -> list[tuple[str, str]]:
    """Return the pages derived from a page, each with its own source on the path, nearest first; at most `most`.

    Links may form a cycle, so each page is returned once, and the page itself is left out.
    """
    found, reached, frontier = list[tuple[str, str]](), {page_id}, [page_id]
    while frontier and (most is None or len(found) < most):
        query = select(page_links.c.page_id, page_links.c.source).where(page_links.c.source.in_(frontier[:500]))
        frontier = frontier[500:]
        for row in connection.execute(query.order_by(page_links.c.page_id, page_links.c.source)).all():
            if row.page_id not in reached:
                reached.add(row.page_id)
                frontier.append(row.page_id)
                found.append((row.page_id, row.source))
    return found[:most]


def queue_derived(connection: Connection, page_id: str, version: int, at: datetime) -> None:
    """Queue all pages derived from a changed page, and replace the items that wait for the page itself.

    A waiting item is replaced, not changed, because a turn's pending verdict on it is about the old version.
    """
    query = select(revalidations).where(revalidations.c.page_id == page_id, revalidations.c.state == "waiting")
    waiting = connection.execute(query.order_by(revalidations.c.number)).all()
    items = [(row.page_id, row.cause, row.cause_version, row.via) for row in waiting]
    items += [(dependent, page_id, version, via) for dependent, via in derived_from(connection, page_id)]
    _queue(connection, items, at)


def queue_outdated(connection: Connection, page_id: str, at: datetime) -> None:
    """Queue a page for each of its sources that has changed since the version that it is linked to."""
    mine = (page_links.c.page_id == page_id) & (pages.c.version > page_links.c.page_version)
    query = select(pages.c.page_id, pages.c.version).join(page_links, page_links.c.source == pages.c.page_id)
    found = connection.execute(query.where(mine).order_by(pages.c.page_id)).all()
    _queue(connection, [(page_id, row.page_id, row.version, row.page_id) for row in found], at)


def _queue(connection: Connection, items: Sequence[tuple[str, str, int, str]], at: datetime) -> None:
    """Queue items: page, cause, the cause's version, and the page's own source on the path."""
    if not items:
        return
    same = (revalidations.c.page_id == bindparam("of")) & (revalidations.c.cause == bindparam("because"))
    replaced = update(revalidations).where(same, revalidations.c.state == "waiting").values(state="replaced")
    connection.execute(replaced, [{"of": page, "because": cause} for page, cause, _, _ in items])
    waiting = {"state": "waiting", "result": "", "turn_id": "", "note": "", "settled_at_us": None}
    rows = [
        {"page_id": page, "cause": cause, "cause_version": version, "via": via, "queued_at_us": to_us(at)} | waiting
        for page, cause, version, via in items
    ]
    connection.execute(insert(revalidations), rows)


def settle_item(connection: Connection, item: Item, settlement: Settlement, turn_id: str, at: datetime) -> None:
    """Take a waiting item out of the queue. If the page holds, update the versions in its links."""
    said = {"result": settlement.result, "note": settlement.note}
    change = {"state": "settled", "turn_id": turn_id, "settled_at_us": to_us(at), **said}
    connection.execute(update(revalidations).where(revalidations.c.number == number_of(item.item_id)).values(change))
    if settlement.result == "holds":
        now = select(pages.c.version).where(pages.c.page_id == page_links.c.source).scalar_subquery()
        mine = (page_links.c.page_id == item.page_id) & page_links.c.source.in_([item.cause, item.via])
        connection.execute(update(page_links).where(mine).values(page_version=func.coalesce(now, 0)))


def keep_versions(connection: Connection, page_id: str, turn_id: str) -> None:
    """Update the versions in a page's links to those that a turn compared, after the turn's text was accepted."""
    held = (revalidations.c.page_id == page_id) & (revalidations.c.turn_id == turn_id)
    for row in connection.execute(select(revalidations).where(held).order_by(revalidations.c.number)).all():
        link = (page_links.c.page_id == page_id) & (page_links.c.source == row.cause)
        connection.execute(update(page_links).where(link).values(page_version=row.cause_version))


def get_item(connection: Connection, item_id: str) -> Item:
    """Return an item. Raises NotFound, InvalidInput."""
    query = select(revalidations).where(revalidations.c.number == number_of(item_id))
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no item {item_id[:40]!r}", hint="see: turnkeeper revalidation list")
    return _item(row)


def list_items(connection: Connection, *, page_id: str = "", include_settled: bool = False, limit: int) -> list[Item]:
    """Return items, the longest waiting first; with `include_settled`, also settled and replaced items."""
    query = select(revalidations).order_by(revalidations.c.number).limit(limit)
    if page_id:
        query = query.where(or_(revalidations.c.page_id == page_id, revalidations.c.cause == page_id))
    if not include_settled:
        query = query.where(revalidations.c.state == "waiting")
    return [_item(row) for row in connection.execute(query).mappings()]


def count_waiting(connection: Connection, *, cause: str = "") -> int:
    """Return the number of waiting items: of all items, or of those for the change of one page."""
    query = select(func.count()).select_from(revalidations).where(revalidations.c.state == "waiting")
    return connection.execute(query.where(revalidations.c.cause == cause) if cause else query).scalar_one()


def number_of(item_id: str) -> int:
    """Return an item's number. Raises InvalidInput.

    >>> number_of("r-12")
    12
    """
    digits = item_id.removeprefix("r-")
    if not (item_id.startswith("r-") and digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise InvalidInput(f"{item_id[:40]!r} is not an item", where="item", hint="give its id, such as r-12")
    return int(digits)


def _item(row: Mapping[Any, Any]) -> Item:
    return from_row(Item, row, item_id=f"r-{row['number']}")
