"""The types of the workspace, which tools and authors read and write. Frozen values without I/O."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from agent_runtime.model.turn import TurnContext
from turnkeeper.errors import InvalidInput

LARGEST_BODY = 256 * 1024
LONGEST_TITLE = 200
MOST_TAGS = 20
MOST_SOURCES = 20
LONGEST_SOURCE = 2048
SUMMARY = "candidate-summary"
PAGE = "candidate-page"
LONGEST_SLUG = 100
_SLUG = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{LONGEST_SLUG - 1}}}", re.ASCII)
_ADDRESS = re.compile(r"https?://[\x21-\x7e]+")
_CHANNEL = re.compile(r"[^\s/\x00-\x1f\x7f][^/\x00-\x1f\x7f]{0,127}")


@dataclass(frozen=True, kw_only=True)
class Author:
    """The person who owns the workspace; only this person's actions make anything canonical.

    Attributes:
        imports: True if the author imports pages that were written elsewhere.
        drafting: True if the page is a draft.
        via: the surface through which a decision came; stored with the decision.
    """

    name: str = "author"
    imports: bool = False
    drafting: bool = False
    via: str = ""


Caller = Author | TurnContext


@dataclass(frozen=True, kw_only=True)
class PageDraft:
    """A proposed page. A proposal has no origin and no lifecycle, because the submit boundary sets them.

    Attributes:
        page_id: a slug.
        title: one line.
        tags: slugs.
        sources: ids of pages and web addresses that the page was derived from.
        version: the version that was read for this change; 0 for the newest at the turn's start. Authors always use 0.
    """

    page_id: str
    title: str
    body: str
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class SummaryDraft:
    """A proposed summary of a channel, without origin and lifecycle."""

    channel: str
    title: str
    body: str


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """The author's decision that a candidate becomes canonical."""

    candidate_id: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """The author's decision against a candidate."""

    candidate_id: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the workspace.

    Attributes:
        body: text, at most 256 KiB.
        tags: sorted.
        origin: authored, agent-produced, imported or observed.
        lifecycle: draft or canonical.
        version: 1 for a new page.
    """

    page_id: str
    title: str
    body: str
    tags: tuple[str, ...]
    origin: str
    lifecycle: str
    version: int
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An agent's proposal and its state.

    Attributes:
        kind: candidate-summary or candidate-page.
        page_id: the proposed page; empty for a summary.
        base_version: the page's version at the proposal; 0 for a new page.
        tags: the page's tags, sorted.
        origin: agent-produced.
        lifecycle: candidate, canonical or rejected.
        task_name: the turn's task; empty for an author's turn.
        sources: the sources of the proposal: `page@version` or a web address.
    """

    candidate_id: str
    kind: str
    channel: str
    page_id: str
    base_version: int
    title: str
    body: str
    tags: tuple[str, ...]
    origin: str
    lifecycle: str
    turn_id: str
    task_name: str
    created_at: datetime
    decided_at: datetime | None
    note: str
    decided_by: str = ""
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemoryEntry:
    """One remembered text.

    Attributes:
        tier: conversation, channel, workspace or account.
        owner: the thread or channel; empty for workspace and account.
        key: the name within tier and owner; writing the same key again replaces the entry.
        form: text, or json for an object that a graph stored.
        origin: authored or agent-produced.
        written_by: the author or agent of the last write.
        turn_id: the turn of the last write; empty for an author's write.
        via: the surface of an author's write; empty if unknown.
    """

    entry_id: str
    tier: str
    owner: str
    key: str
    text: str
    form: str
    origin: str
    written_by: str
    turn_id: str
    created_at: datetime
    updated_at: datetime
    via: str = ""


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A search result: a page's id, title, a line around the terms, and the time of its last change."""

    page_id: str
    title: str
    snippet: str
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class ChannelMessage:
    """One message of a channel: its turn, role, text and time."""

    turn_id: str
    role: str
    text: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ConversationReading:
    """The result of reading a channel: the start (None for the beginning) and the messages, oldest first.

    `left_out` counts the older messages that did not fit; messages beyond the query's limit are not counted.
    """

    channel: str
    since: datetime | None
    messages: tuple[ChannelMessage, ...]
    left_out: int


def slug(title: str) -> str:
    """Return a page id for a title; equal titles give equal ids.

    >>> slug("Release Plan (v2)"), slug("計画")
    ('release-plan-v2', 'page-5a025aa4')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:100].strip("-")
    return plain or f"page-{sha256(title.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def check_page(draft: PageDraft) -> PageDraft:
    """Return the draft in its stored form, tags sorted. Raises InvalidInput, naming the field."""
    if not _SLUG.fullmatch(draft.page_id):
        hint = "use at most 100 characters of a-z, 0-9 and -, not starting with -"
        raise InvalidInput(f"{draft.page_id[:40]!r} is not a page id", where="page", hint=hint)
    tags = tuple(sorted(set(draft.tags)))
    if len(tags) > MOST_TAGS or not all(_SLUG.fullmatch(tag) for tag in tags):
        raise InvalidInput(f"at most {MOST_TAGS} tags of a-z, 0-9 and -", where="tags")
    if draft.version < 0:
        raise InvalidInput("is negative", where="version")
    title, body = check_title(draft.title), check_text(draft.body, "body")
    return replace(draft, title=title, body=body, tags=tags, sources=check_sources(draft.sources))


def check_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """Return sources without duplicates: ids of pages and web addresses. Raises InvalidInput."""
    once = tuple(dict.fromkeys(sources))
    if len(once) > MOST_SOURCES:
        raise InvalidInput(f"at most {MOST_SOURCES} are allowed", where="sources")
    for source in once:
        if len(source) > LONGEST_SOURCE or not (_SLUG.fullmatch(source) or _ADDRESS.fullmatch(source)):
            hint = "give ids of pages, or addresses that begin with http:// or https://"
            raise InvalidInput(f"{source[:80]!r} is not a source", where="sources", hint=hint)
    return once


def is_address(source: str) -> bool:
    """Return whether a source is a web address; otherwise it is a page of the workspace."""
    return "://" in source


def check_title(title: str) -> str:
    """Return a title without blanks at its ends: one line of 1 to 200 characters. Raises InvalidInput."""
    title = check_text(title, "title").strip()
    if not 1 <= len(title) <= LONGEST_TITLE or "\n" in title or "\r" in title:
        raise InvalidInput(f"must be one line of 1 to {LONGEST_TITLE} characters", where="title")
    return title


def check_channel(channel: str) -> str:
    """Return a channel's name: 1 to 128 characters, no control characters or `/`. Raises InvalidInput."""
    if not _CHANNEL.fullmatch(check_text(channel, "channel")):
        raise InvalidInput(f"{channel[:40]!r} is not a channel name", where="channel")
    return channel


def check_text(text: str, field: str, largest: int = LARGEST_BODY) -> str:
    """Return text that can be stored: no NUL, no lone surrogate, at most `largest` bytes. Raises InvalidInput."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"contains a lone surrogate at {error.start}", where=field) from error
    if "\x00" in text:
        raise InvalidInput("contains a NUL character", where=field)
    if size > largest:
        raise InvalidInput(f"is {size} bytes; the limit is {largest}", where=field)
    return text
