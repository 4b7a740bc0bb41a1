"""Reading the workspace: functions of a connection, for the daemon and for a command line that finds it down."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, desc, or_, select

from agent_runtime.model.words import score, snippet, terms
from agent_runtime.store.workspace_schema import candidates, derivations, page_versions, pages
from agent_runtime.workspace.model import Candidate, Hit, Page
from turnkeeper.errors import NotFound
from turnkeeper.times import from_us

MOST_ROWS = 1000
_MOST_SCANNED = 500


def list_pages(
    connection: Connection, *, tag: str = "", lifecycle: str = "", origin: str = "", after: str = ""
) -> list[Page]:
    """Return pages by id, with their bodies; only those of a tag, lifecycle and origin if given. At most a thousand.

    `after` goes on behind a page's id, where a list ended.
    """
    query = select(pages).where(pages.c.page_id > after).order_by(pages.c.page_id).limit(MOST_ROWS)
    if tag:
        query = query.where(pages.c.tags.contains(json.dumps(tag), autoescape=True))
    for column, wanted in ((pages.c.lifecycle, lifecycle), (pages.c.origin, origin)):
        query = query.where(column == wanted) if wanted else query
    return [to_page(row) for row in connection.execute(query)]


def get_page(connection: Connection, page_id: str) -> Page:
    """Return a page. Raises NotFound."""
    row = connection.execute(select(pages).where(pages.c.page_id == page_id)).one_or_none()
    if row is None:
        raise NotFound(f"no page {page_id[:100]!r}", hint="see: agent-runtime workspace list")
    return to_page(row)


def get_version(connection: Connection, page_id: str, version: int) -> Page:
    """Return a page as it was, or is, in one version. Raises NotFound."""
    page = get_page(connection, page_id)
    if version == page.version:
        return page
    one = (page_versions.c.page_id == page_id) & (page_versions.c.version == version)
    row = connection.execute(select(page_versions).where(one)).one_or_none()
    if row is None:
        raise NotFound(f"page {page_id} has no version {version}", hint=f"the newest is {page.version}")
    return to_page(row)


def list_candidates(connection: Connection, *, channel: str = "", include_decided: bool = False) -> list[Candidate]:
    """Return candidates, newest first: those that wait, or all; of one channel, or of every. At most a thousand."""
    query = select(candidates).order_by(desc(candidates.c.created_at_us), candidates.c.candidate_id).limit(MOST_ROWS)
    if channel:
        query = query.where(candidates.c.channel == channel)
    if not include_decided:
        query = query.where(candidates.c.lifecycle == "candidate")
    rows = connection.execute(query).all()
    sources = _sources(connection, [row.candidate_id for row in rows])
    return [to_candidate(row, sources.get(row.candidate_id, ())) for row in rows]


def candidates_of(connection: Connection, turn_ids: Sequence[str]) -> dict[str, list[Candidate]]:
    """Return what turns proposed, in order, by turn; a turn that proposed nothing is left out."""
    query = select(candidates).where(candidates.c.turn_id.in_(turn_ids))
    rows = connection.execute(query.order_by(candidates.c.created_at_us, candidates.c.candidate_id)).all()
    sources = _sources(connection, [row.candidate_id for row in rows])
    found: dict[str, list[Candidate]] = {}
    for row in rows:
        found.setdefault(row.turn_id, []).append(to_candidate(row, sources.get(row.candidate_id, ())))
    return found


def get_candidate(connection: Connection, candidate_id: str) -> Candidate:
    """Return a candidate. Raises NotFound."""
    row = connection.execute(select(candidates).where(candidates.c.candidate_id == candidate_id)).one_or_none()
    if row is None:
        raise NotFound(f"no candidate {candidate_id[:64]!r}", hint="see: agent-runtime candidates list")
    return to_candidate(row, _sources(connection, [candidate_id]).get(candidate_id, ()))


def _sources(connection: Connection, candidate_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return what candidates were derived from: a page with its version then, an address as it is."""
    found: dict[str, tuple[str, ...]] = {}
    query = select(derivations).where(derivations.c.candidate_id.in_(candidate_ids)).order_by(derivations.c.source)
    for row in connection.execute(query) if candidate_ids else ():
        shown = f"{row.source}@{row.page_version}" if row.page_version else row.source
        found[row.candidate_id] = (*found.get(row.candidate_id, ()), shown)
    return found


def search_pages(connection: Connection, text: str, *, limit: int) -> tuple[list[Hit], bool]:
    """Return the pages that match best, best first, and whether more pages hold a term than are ranked.

    A title counts more than a body, and a page that holds more of the terms more than one that repeats a term.
    """
    wanted = terms(text)
    query = select(pages).order_by(desc(pages.c.updated_at_us), pages.c.page_id).limit(_MOST_SCANNED + 1)
    rows: Sequence[Row[Any]] = connection.execute(query.where(_holds_any(wanted))).all() if wanted else []
    ranked = sorted(
        ((score(wanted, row.title, row.body, row.tags), row) for row in rows[:_MOST_SCANNED]),
        key=lambda pair: (-pair[0], pair[1].page_id),
    )
    hits = [
        Hit(
            page_id=row.page_id,
            title=row.title,
            snippet=snippet(wanted, row.body),
            updated_at=from_us(row.updated_at_us),
        )
        for points, row in ranked[:limit]
        if points > 0
    ]
    return hits, len(rows) > _MOST_SCANNED


def _holds_any(wanted: list[str]) -> ColumnElement[bool]:
    """Leave out pages without any of the terms. LIKE folds the case of ASCII only, hence the spellings."""
    spellings = dict.fromkeys(form for term in wanted for form in (term, term.upper(), term.capitalize()))
    columns = (pages.c.title, pages.c.body, pages.c.tags)
    return or_(*(column.contains(form, autoescape=True) for form in spellings for column in columns))


def to_page(row: Row[Any]) -> Page:
    """Return a row of `pages` as a value."""
    return Page(
        page_id=row.page_id,
        title=row.title,
        body=row.body,
        tags=tuple(json.loads(row.tags)),
        origin=row.origin,
        lifecycle=row.lifecycle,
        version=row.version,
        updated_at=from_us(row.updated_at_us),
    )


def to_candidate(row: Row[Any], sources: tuple[str, ...] = ()) -> Candidate:
    """Return a row of `candidates` as a value, with what it was derived from."""
    return Candidate(
        candidate_id=row.candidate_id,
        kind=row.kind,
        channel=row.channel,
        page_id=row.page_id,
        base_version=row.base_version,
        title=row.title,
        body=row.body,
        tags=tuple(json.loads(row.tags)),
        origin=row.origin,
        lifecycle=row.lifecycle,
        turn_id=row.turn_id,
        task_name=row.task_name,
        created_at=from_us(row.created_at_us),
        decided_at=None if row.decided_at_us is None else from_us(row.decided_at_us),
        note=row.note,
        sources=sources,
    )
