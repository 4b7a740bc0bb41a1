"""The workspace's vocabulary: what tools and authors read and write. Frozen values; no I/O."""

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
    """The person whose workspace this is; the only one whose act makes anything canonical.

    Attributes:
        imports: the act is an import: what it writes was written elsewhere.
        drafting: what the act writes is not meant to stand yet.
        via: by what a decision came; kept with it.
    """

    name: str = "author"
    imports: bool = False
    drafting: bool = False
    via: str = ""


Caller = Author | TurnContext


@dataclass(frozen=True, kw_only=True)
class PageDraft:
    """A page as someone would have it. It names no origin and no lifecycle: the submit boundary sets those.

    Attributes:
        page_id: a slug.
        title: one line.
        tags: slugs.
        sources: what it was derived from: ids of pages, and addresses of pages on the web.
        version: of the page that was read to change it; 0: the newest when the turn began. An author's is always now.
    """

    page_id: str
    title: str
    body: str
    tags: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    version: int = 0


@dataclass(frozen=True, kw_only=True)
class SummaryDraft:
    """A summary for a channel, likewise."""

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
        version: 1 when it was new.
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
    """Something an agent proposed, and what became of it.

    Attributes:
        kind: candidate-summary or candidate-page.
        page_id: the page it would become; empty for a summary.
        base_version: the version of that page that it was made from; 0 when there was none.
        tags: sorted; of the page.
        origin: agent-produced.
        lifecycle: candidate, canonical or rejected.
        task_name: that turn's task; empty for an author's turn.
        sources: what it was derived from: `page@version`, or an address on the web.
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
        owner: the thread or channel it belongs to; empty for workspace and account.
        key: its name within tier and owner; putting the same key again replaces it.
        form: text, or json: the text of an object that a graph stored.
        origin: authored or agent-produced.
        written_by: the author or the agent who wrote it last.
        turn_id: the turn that wrote it last; empty for an author's.
        via: by what an author wrote it; empty where unknown.
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
    """A page that a search found: its id, title, a line around the terms, and when it last changed."""

    page_id: str
    title: str
    snippet: str
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class ChannelMessage:
    """One message of a channel: who said it in which turn, when, and what."""

    turn_id: str
    role: str
    text: str
    at: datetime


@dataclass(frozen=True, kw_only=True)
class ConversationReading:
    """What reading a channel gave: since when (None: from the start), and the messages, oldest first.

    `left_out` counts the older messages that did not fit, as far as they were looked at.
    """

    channel: str
    since: datetime | None
    messages: tuple[ChannelMessage, ...]
    left_out: int


def slug(title: str) -> str:
    """Return a page id for a title, the same for the same title.

    >>> slug("Release Plan (v2)"), slug("計画")
    ('release-plan-v2', 'page-5a025aa4')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:100].strip("-")
    return plain or f"page-{sha256(title.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def check_page(draft: PageDraft) -> PageDraft:
    """Return the draft in its stored form, tags sorted. Raises InvalidInput, naming the field."""
    if not _SLUG.fullmatch(draft.page_id):
        hint = "use a-z, 0-9 and -, at most 100, not starting with -"
        raise InvalidInput(f"{draft.page_id[:40]!r} is not a page's name", where="page", hint=hint)
    tags = tuple(sorted(set(draft.tags)))
    if len(tags) > MOST_TAGS or not all(_SLUG.fullmatch(tag) for tag in tags):
        raise InvalidInput(f"at most {MOST_TAGS} tags of a-z, 0-9 and -", where="tags")
    if draft.version < 0:
        raise InvalidInput("is negative", where="version")
    title, body = check_title(draft.title), check_text(draft.body, "body")
    return replace(draft, title=title, body=body, tags=tags, sources=check_sources(draft.sources))


def check_sources(sources: Sequence[str]) -> tuple[str, ...]:
    """Return sources, each once: pages' ids and addresses on the web. Raises InvalidInput."""
    once = tuple(dict.fromkeys(sources))
    if len(once) > MOST_SOURCES:
        raise InvalidInput(f"at most {MOST_SOURCES} are allowed", where="sources")
    for source in once:
        if len(source) > LONGEST_SOURCE or not (_SLUG.fullmatch(source) or _ADDRESS.fullmatch(source)):
            hint = "give ids of pages, or addresses that begin with http:// or https://"
            raise InvalidInput(f"{source[:80]!r} is not a source", where="sources", hint=hint)
    return once


def is_address(source: str) -> bool:
    """Return whether a source is an address on the web, not a page of the workspace."""
    return "://" in source


def check_title(title: str) -> str:
    """Return a title without outer blanks: one line of 1 to 200 characters. Raises InvalidInput."""
    title = check_text(title, "title").strip()
    if not 1 <= len(title) <= LONGEST_TITLE or "\n" in title or "\r" in title:
        raise InvalidInput(f"must be one line of 1 to {LONGEST_TITLE} characters", where="title")
    return title


def check_channel(channel: str) -> str:
    """Return a channel's name if it is one: 1 to 128 characters, no control characters or `/`. Raises InvalidInput."""
    if not _CHANNEL.fullmatch(check_text(channel, "channel")):
        raise InvalidInput(f"{channel[:40]!r} is not a channel's name", where="channel")
    return channel


def check_text(text: str, field: str, largest: int = LARGEST_BODY) -> str:
    """Return text that can be stored: no NUL, no lone surrogate, at most `largest` bytes. Raises InvalidInput."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"holds a lone surrogate at {error.start}", where=field) from error
    if "\x00" in text:
        raise InvalidInput("holds a NUL character", where=field)
    if size > largest:
        raise InvalidInput(f"is {size} bytes; the most is {largest}", where=field)
    return text
