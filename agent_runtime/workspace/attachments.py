"""Attachments of pages. They are kept in the store, so that a backup of the store holds them. Only authors add them."""

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from sqlalchemy import Connection, func, select

from agent_runtime.model.mapping import from_row
from agent_runtime.store.workspace_schema import attachments
from turnkeeper.errors import Exhausted, InvalidInput, NotFound
from turnkeeper.storage.statements import upsert
from turnkeeper.times import to_us

LARGEST = 2 * 1024 * 1024  # bytes
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
        page_id: the page.
        name: its name there.
        content_type: as its author gave it, such as text/csv.
        size: bytes.
        sha256: of its bytes, in hexadecimal.
        origin: authored or imported.
        lifecycle: canonical.
        added_at: when it was put there.
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
    """Return the draft if it can be kept. Raises InvalidInput, naming the field."""
    if not _NAME.fullmatch(draft.name) or len(draft.name.encode("utf-8", "surrogatepass")) > 255:
        hint = "at most 100 characters, no / and no control characters, not beginning with a dot or a blank"
        raise InvalidInput(f"{draft.name[:40]!r} is not a file's name", where="name", hint=hint)
    if not draft.name.isprintable() and any(0xD800 <= ord(character) < 0xE000 for character in draft.name):
        raise InvalidInput("holds a lone surrogate", where="name")
    if not _TYPE.fullmatch(draft.content_type):
        raise InvalidInput(f"{draft.content_type[:40]!r} is not a content type", where="type", hint="such as text/csv")
    if not 0 < len(draft.data) <= LARGEST:
        raise InvalidInput(f"is {len(draft.data)} bytes; it must be 1 to {LARGEST}", where="data")
    return draft


def put_attachment(
    connection: Connection, draft: AttachmentDraft, *, origin: str, lifecycle: str, by: str, at: datetime
) -> Attachment:
    """Store an attachment of a page. Raises Exhausted when the page has 50."""
    others = select(func.count()).where(attachments.c.page_id == draft.page_id, attachments.c.name != draft.name)
    if connection.execute(others).scalar_one() >= MOST_ON_A_PAGE:
        raise Exhausted(f"page {draft.page_id} has {MOST_ON_A_PAGE} attachments, the most there may be", where="page")
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
    """Return the attachments of a page, by name."""
    query = select(*_META).where(attachments.c.page_id == page_id).order_by(attachments.c.name)
    return [from_row(Attachment, row) for row in connection.execute(query).mappings()]


def get_attachment(connection: Connection, page_id: str, name: str) -> tuple[Attachment, bytes]:
    """Return an attachment and its bytes. Raises NotFound; the hint names the page's attachments."""
    one = (attachments.c.page_id == page_id) & (attachments.c.name == name)
    row = connection.execute(select(attachments).where(one)).mappings().one_or_none()
    if row is None:
        there = ", ".join(found.name for found in list_attachments(connection, page_id)) or "none"
        raise NotFound(f"no attachment {name[:100]!r} on page {page_id[:100]!r}", hint=f"there are: {there}")
    return from_row(Attachment, row), bytes(row["data"])


def as_text(found: Attachment, data: bytes) -> str:
    """Return an attachment's text. Raises InvalidInput for one that is none, with the reason."""
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
