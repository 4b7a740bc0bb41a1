"""Texts and times of the page: the only module that converts the texts of people and agents to HTML.

Every value that a template prints is escaped, and so are control characters and invisible characters. Rendered Markdown
contains no raw HTML, loads nothing, and links only to web and mail addresses.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from google.protobuf.timestamp_pb2 import Timestamp
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from turnkeeper.console.unseen import plain, prose
from turnkeeper.gateway.page.when import in_words
from turnkeeper.times import format_rough, parse_rfc3339, rfc3339, shown_in, written_time

PAUSES = ("1h", "tomorrow 00:00", "monday 00:00")  # midnight, so that no fire of that day is skipped
LONGEST = 20_000  # characters of one text; the command line shows the whole text
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_LOWEST_HEADING = 6
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?Z")
_PARTS = re.compile(rf"(`[^`]+`|{_INSTANT.pattern})")
_MARKS = re.compile(r"^[ \t]*(?:[-*+>]|#{1,6})[ \t]+", re.MULTILINE)
_NOTHING = Markup("&ndash;")


def _make() -> MarkdownIt:
    made = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable("table").disable("image")
    made.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]
    made.add_render_rule("link_open", _link)
    made.add_render_rule("heading_open", _heading)
    made.add_render_rule("heading_close", _heading)
    return made


def _link(self: Any, tokens: Sequence[Token], at: int, options: Any, _env: Any) -> str:
    tokens[at].attrSet("rel", "noreferrer noopener")
    tokens[at].attrSet("target", "_blank")
    return str(self.renderToken(tokens, at, options, _env))


def _heading(self: Any, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    """Make an agent's headings lower than the page's own headings."""
    token = tokens[at]
    token.tag = f"h{min(_LOWEST_HEADING, int(token.tag[1:]) + env['below'])}"
    return str(self.renderToken(tokens, at, options, env))


_MARKDOWN = _make()


def markdown(text: str, below: int = 3, *, said: bool = False) -> Markup:
    r"""Return Markdown as safe HTML, with its headings below the level `below`.

    Invisible characters are escaped after rendering, because Markdown can also spell them as entities. Text `said` in
    a conversation keeps the joiners of its emoji and scripts.

    >>> markdown("*a* <script> [x](javascript:1)")
    Markup('<p><em>a</em> &lt;script&gt; [x](javascript:1)</p>\n')
    """
    rendered = _MARKDOWN.render(cut(text), {"below": below})
    return Markup((prose if said else plain)(rendered))  # noqa: S704  escaped by the renderer, html is off


def cut(text: str) -> str:
    """Return the beginning of a text that is too long for the page, with the number of characters left out."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n\n… {len(text) - LONGEST} more characters"


def written(text: str) -> Markup:
    """Return a prompt or a person's message unchanged, with the joiners of its emoji. Markdown could hide parts."""
    return escape(prose(text))


def printed(value: object) -> object:
    """Return the form of a value for a template: text without characters that a browser would interpret."""
    return plain(value) if type(value) is str else value


def pretty(text: str) -> str:
    """Return JSON indented for people; return any other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def pairs_in(text: str) -> list[tuple[str, str, bool]]:
    """Return the members of a JSON object: name, value as text, and True if it is a string; empty for any other text.

    >>> pairs_in('{"to": "me", "n": 2}'), pairs_in("[1]")
    ([('to', 'me', True), ('n', '2', False)], [])
    """
    try:
        found = json.loads(text)
    except ValueError:
        return []
    pairs = found.items() if isinstance(found, dict) else ()
    return [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), isinstance(value, str))
        for key, value in pairs
    ]


def instant(at: Timestamp | datetime | None) -> datetime | None:
    """Return a timestamp as a datetime in UTC, or None if it is not set."""
    if isinstance(at, Timestamp):
        return at.ToDatetime(UTC) if at.seconds or at.nanos else None
    return at


def zone_of(name: str) -> ZoneInfo | None:
    """Return a zone by its name. None means the machine's zone, if the name is unknown."""
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError):
        return None


class Times:
    """Formatter of the times in one answer, all relative to the same `now`."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def at(
        self, at: Timestamp | datetime | None, zone: str = "", *, brief: bool = False, dated: bool = False
    ) -> Markup:
        """Format an instant in a zone, with UTC as its tooltip: `Mon 23 Nov 09:00 CET`. Add today's date if `dated`."""
        found = instant(at)
        if found is None:
            return _NOTHING
        shown, today = shown_in(found, zone_of(zone)), shown_in(self.now, zone_of(zone))
        day = "" if shown.date() == today.date() and not dated else f"{shown:%a} {shown.day} {shown:%b} "
        year = "" if shown.year == today.year else f"{shown.year} "
        seconds = f":{shown:%S}" if shown.second and not brief else ""
        name = "" if brief else f" {shown:%Z}"
        title = f"{found:%Y-%m-%d %H:%M:%S} UTC"
        text = f"{day}{year}{shown:%H:%M}{seconds}{name}"
        return Markup('<time datetime="{}" title="{}">{}</time>').format(rfc3339(found), title, text)

    def until(self, at: Timestamp | datetime, zone: str = "") -> str:
        """Format the end of a pause in words, with its day: `until Monday 23 Nov, 09:00 CET`."""
        shown = shown_in(instant(at) or self.now, zone_of(zone))
        year = "" if shown.year == shown_in(self.now, zone_of(zone)).year else f" {shown.year}"
        return f"until {shown:%A} {shown.day} {shown:%b}{year}, {shown:%H:%M %Z}"

    def pauses(self, zone: str) -> list[tuple[str, str]]:
        """Return the choices for the end of a pause, as values of a form and in words."""
        now = shown_in(self.now, zone_of(zone))
        written = {choice: datetime.fromisoformat(written_time(choice, now)) for choice in PAUSES}
        return [
            (
                choice if at.tzinfo else at.isoformat(),
                self.until(at if at.tzinfo else at.replace(tzinfo=now.tzinfo), zone),
            )
            for choice, at in written.items()
            if choice != PAUSES[-1] or at != written[PAUSES[1]]  # on a Sunday, tomorrow and Monday are the same
        ]

    def ago(self, at: Timestamp | datetime | None) -> Markup:
        found = instant(at)
        if found is None:
            return _NOTHING
        span = (self.now - found).total_seconds()
        text = "just now" if span < 1 else f"{format_rough(span)} ago"
        return Markup('<time data-since datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
            rfc3339(found), found, text
        )

    def left(self, at: Timestamp | datetime | None) -> Markup:
        """Format the time left until an instant. A script counts the time down."""
        found = instant(at)
        if found is None:
            return _NOTHING
        span = (found - self.now).total_seconds()
        text = "now" if span < 1 else f"in {format_rough(span)}"
        return Markup('<span data-until="{}">{}</span>').format(rfc3339(found), text)

    def said(self, text: str, zone: str = "") -> Markup:
        """Return a daemon's sentence with its instants formatted by :meth:`at`, and its commands as code."""
        parts = _PARTS.split(plain(text))
        return Markup("").join(self._part(part, zone) for part in parts)

    def schedule(self, text: str, zone: str = "") -> Markup:
        """Return a task's schedule in words with its expression as the tooltip, or else in the form of :meth:`said`."""
        words = in_words(text)
        shown = Markup('<span title="{}">{}</span>').format(plain(text), words[:1].upper() + words[1:])
        once = Markup("Once, ") if text.startswith("at ") else Markup("")
        return shown if words else once + self.said(text, zone)

    def _part(self, part: str, zone: str) -> Markup:
        if _INSTANT.fullmatch(part):
            return self.at(parse_rfc3339(part), zone)
        is_code = len(part) > 2 and part[0] == part[-1] == "`"
        return Markup("<code>{}</code>").format(part[1:-1]) if is_code else escape(part)


def span(begin: Timestamp, end: Timestamp) -> str:
    """Format a duration. Empty if the period has not ended."""
    first, last = instant(begin), instant(end)
    if first is None or last is None:
        return ""
    return format_rough(max((last - first) / timedelta(seconds=1), 0.0))


def unmarked(text: str) -> str:
    r"""Return Markdown without the markers at the starts of lines, for display in one line.

    >>> unmarked("# News\n- the office moves - soon")
    'News\nthe office moves - soon'
    """
    return _MARKS.sub("", text)


def fields(pairs: Mapping[str, object]) -> list[tuple[str, object]]:
    return [(key, value) for key, value in pairs.items() if value not in {"", None, 0}]
