"""Pages, candidates and attachments in the store: reads over an open connection.

Attachments are kept in the store, so that a backup of the store includes them. Only authors add attachments.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, desc, func, or_, select

from agent_runtime.model.mapping import from_row
from agent_runtime.model.words import score, snippet, terms
from agent_runtime.store.schema import attachments, candidates, derivations, page_versions, pages
from agent_runtime.workspace.model import LONGEST_SLUG, Candidate, Hit, Page
from turnkeeper.errors import Conflict, Exhausted, InvalidInput, NotFound
from turnkeeper.storage.statements import hold_any, holds, upsert
from turnkeeper.times import to_us

MOST_ROWS = 1000
_MOST_SCANNED = 500


def list_pages(
    connection: Connection, *, tag: str = "", lifecycle: str = "", origin: str = "", after: str = ""
) -> list[Page]:
    """Return pages with their bodies, ordered by id, filtered by tag, lifecycle and origin. At most a thousand.

    `after` is the last id of the previous list.
    """
    if len(tag) > LONGEST_SLUG:
        return []  # no page has such an id, and SQLite cannot search for a very long id
    query = select(pages).where(pages.c.page_id > after).order_by(pages.c.page_id).limit(MOST_ROWS)
    if tag:
        query = query.where(holds(pages.c.tags, json.dumps(tag)))
    for column, wanted in ((pages.c.lifecycle, lifecycle), (pages.c.origin, origin)):
        query = query.where(column == wanted) if wanted else query
    return [to_page(row) for row in connection.execute(query).mappings()]


def get_page(connection: Connection, page_id: str) -> Page:
    """Return a page. Raises NotFound."""
    row = connection.execute(select(pages).where(pages.c.page_id == page_id)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"no page {page_id[:100]!r}", hint="see: turnkeeper workspace list")
    return to_page(row)


def find_page(connection: Connection, named: str) -> Page:
    """Return the page with that id, or else the one page with that title, ignoring case. Raises NotFound, Conflict."""
    with suppress(NotFound):
        return get_page(connection, named)
    words = named.casefold().split()
    first = words[0] if words else ""
    # A database folds only ASCII case.
    spelled = or_(*(holds(pages.c.title, form) for form in (first, first.upper(), first.capitalize())))
    query = select(pages.c.page_id, pages.c.title).where(spelled)
    titled = [row.page_id for row in connection.execute(query) if row.title.casefold().split() == words]
    if len(titled) > 1:
        raise Conflict(f"{len(titled)} pages are titled {named[:80]!r}: {', '.join(titled[:4])}", hint="name one by id")
    return get_page(connection, titled[0] if titled else named)


def get_version(connection: Connection, page_id: str, version: int) -> Page:
    """Return a page in one version. Raises NotFound."""
    page = get_page(connection, page_id)
    if version == page.version:
        return page
    one = (page_versions.c.page_id == page_id) & (page_versions.c.version == version)
    row = connection.execute(select(page_versions).where(one)).mappings().one_or_none()
    if row is None:
        raise NotFound(f"page {page_id} has no version {version}", hint=f"the newest is {page.version}")
    return to_page(row)


def list_candidates(connection: Connection, *, channel: str = "", include_decided: bool = False) -> list[Candidate]:
    """Return candidates, newest first: pending or all, of one channel or of all. At most a thousand."""
    query = select(candidates).order_by(desc(candidates.c.created_at_us), candidates.c.candidate_id).limit(MOST_ROWS)
    if channel:
        query = query.where(candidates.c.channel == channel)
    if not include_decided:
        query = query.where(candidates.c.lifecycle == "candidate")
    return _candidates(connection, query)


def candidates_of(connection: Connection, turn_ids: Sequence[str]) -> dict[str, list[Candidate]]:
    """Return the proposals of turns, in order, by turn; turns without proposals are left out."""
    query = select(candidates).where(candidates.c.turn_id.in_(turn_ids))
    found: dict[str, list[Candidate]] = {}
    for one in _candidates(connection, query.order_by(candidates.c.created_at_us, candidates.c.candidate_id)):
        found.setdefault(one.turn_id, []).append(one)
    return found


def get_candidate(connection: Connection, candidate_id: str) -> Candidate:
    """Return a candidate. Raises NotFound."""
    found = _candidates(connection, select(candidates).where(candidates.c.candidate_id == candidate_id))
    if not found:
        raise NotFound(f"no candidate {candidate_id[:64]!r}", hint="see: turnkeeper candidates list")
    return found[0]


def _candidates(connection: Connection, query: Select[Any]) -> list[Candidate]:
    rows = connection.execute(query).mappings().all()
    sources = _sources(connection, [row["candidate_id"] for row in rows])
    return [
        from_row(Candidate, row, tags=tuple(json.loads(row["tags"])), sources=sources.get(row["candidate_id"], ()))
        for row in rows
    ]


def _sources(connection: Connection, candidate_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the sources of candidates: a page with its version at that time, or a web address."""
    found: dict[str, tuple[str, ...]] = {}
    query = select(derivations).where(derivations.c.candidate_id.in_(candidate_ids)).order_by(derivations.c.source)
    for row in connection.execute(query) if candidate_ids else ():
        shown = f"{row.source}@{row.page_version}" if row.page_version else row.source
        found[row.candidate_id] = (*found.get(row.candidate_id, ()), shown)
    return found


def search_pages(connection: Connection, text: str, *, limit: int) -> tuple[list[Hit], bool]:
    """Return the best matching pages, best first, and whether more pages match than are ranked.

    A title counts more than a body, and different terms count more than repetitions of a term.
    """
    wanted = terms(text)
    query = select(pages).order_by(desc(pages.c.updated_at_us), pages.c.page_id).limit(_MOST_SCANNED + 1)
    in_words = hold_any((pages.c.title, pages.c.body, pages.c.tags), wanted)
    rows = connection.execute(query.where(in_words)).mappings().all() if wanted else []
    ranked = sorted(
        ((score(wanted, row["title"], row["body"], row["tags"]), row) for row in rows[:_MOST_SCANNED]),
        key=lambda pair: (-pair[0], pair[1]["page_id"]),
    )
    best = [row for points, row in ranked[:limit] if points > 0]
    hits = [from_row(Hit, row, snippet=snippet(wanted, row["body"])) for row in best]
    return hits, len(rows) > _MOST_SCANNED


def to_page(row: RowMapping) -> Page:
    return from_row(Page, row, tags=tuple(json.loads(row["tags"])))


LARGEST_ATTACHMENT = 2 * 1024 * 1024  # bytes
MOST_ON_A_PAGE = 50
_NAME = re.compile(r"[^/\x00-\x1f\x7f.\s][^/\x00-\x1f\x7f]{0,99}")
_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,48}/[a-z0-9][a-z0-9!#$&^_.+-]{0,49}", re.ASCII)
_TEXTS = frozenset({"application/json", "application/xml", "application/toml", "application/yaml", "application/csv"})


@dataclass(frozen=True, kw_only=True)
class AttachmentDraft:
    """A file to attach to a page; an attachment of the same name is replaced."""

    page_id: str
    name: str
    content_type: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file attached to a page.

    Attributes:
        content_type: the author's value, such as text/csv.
        size: bytes.
        origin: authored or imported.
        lifecycle: canonical.
    """

    page_id: str
    name: str
    content_type: str
    size: int
    sha256: str
    origin: str
    lifecycle: str
    added_at: datetime


_META = tuple(attachments.c[name] for name in (*Attachment.__dataclass_fields__, "added_at_us") if name != "added_at")


def check_attachment(draft: AttachmentDraft) -> AttachmentDraft:
    """Return the draft if it can be stored. Raises InvalidInput, naming the field."""
    if not _NAME.fullmatch(draft.name) or len(draft.name.encode("utf-8", "surrogatepass")) > 255:
        hint = "at most 100 characters, no / and no control characters, not beginning with a dot or a blank"
        raise InvalidInput(f"{draft.name[:40]!r} is not a file name", where="name", hint=hint)
    if not draft.name.isprintable() and any(0xD800 <= ord(character) < 0xE000 for character in draft.name):
        raise InvalidInput("contains a lone surrogate", where="name")
    if not _TYPE.fullmatch(draft.content_type):
        raise InvalidInput(f"{draft.content_type[:40]!r} is not a content type", where="type", hint="such as text/csv")
    if not 0 < len(draft.data) <= LARGEST_ATTACHMENT:
        raise InvalidInput(f"is {len(draft.data)} bytes; it must be 1 to {LARGEST_ATTACHMENT}", where="data")
    return draft


def put_attachment(
    connection: Connection, draft: AttachmentDraft, *, origin: str, lifecycle: str, by: str, at: datetime
) -> Attachment:
    """Store an attachment of a page. Raises Exhausted if the page already has 50."""
    others = select(func.count()).where(attachments.c.page_id == draft.page_id, attachments.c.name != draft.name)
    if connection.execute(others).scalar_one() >= MOST_ON_A_PAGE:
        raise Exhausted(f"page {draft.page_id} has {MOST_ON_A_PAGE} attachments, which is the limit", where="page")
    row = {
        **draft.__dict__,
        "size": len(draft.data),
        "sha256": sha256(draft.data).hexdigest(),
        "origin": origin,
        "lifecycle": lifecycle,
        "added_by": by,
        "added_at_us": to_us(at),
    }
    same = [attachments.c.page_id, attachments.c.name]
    connection.execute(upsert(attachments, same, row.keys()).values(row))
    return get_attachment(connection, draft.page_id, draft.name)[0]


def list_attachments(connection: Connection, page_id: str) -> list[Attachment]:
    query = select(*_META).where(attachments.c.page_id == page_id).order_by(attachments.c.name)
    return [from_row(Attachment, row) for row in connection.execute(query).mappings()]


def get_attachment(connection: Connection, page_id: str, name: str) -> tuple[Attachment, bytes]:
    """Return an attachment and its bytes. Raises NotFound; the hint names the page's attachments."""
    one = (attachments.c.page_id == page_id) & (attachments.c.name == name)
    row = connection.execute(select(attachments).where(one)).mappings().one_or_none()
    if row is None:
        there = ", ".join(found.name for found in list_attachments(connection, page_id))
        hint = f"use one of: {there}" if there else "the page has no attachments"
        raise NotFound(f"no attachment {name[:100]!r} on page {page_id[:100]!r}", hint=hint)
    return from_row(Attachment, row), bytes(row["data"])


def as_text(found: Attachment, data: bytes) -> str:
    """Return an attachment's text. Raises InvalidInput with a reason if it is not text."""
    textual = found.content_type.startswith("text/") or found.content_type in _TEXTS
    if not textual:
        what = f"is {found.content_type}, {found.size} bytes; only text can be read"
        raise InvalidInput(what, where=f"{found.page_id}/{found.name}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not UTF-8 at byte {error.start}", where=f"{found.page_id}/{found.name}") from error
    if "\x00" in text:
        raise InvalidInput("contains NUL characters, so it is not text", where=f"{found.page_id}/{found.name}")
    return text
