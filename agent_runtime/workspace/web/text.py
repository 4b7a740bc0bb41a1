"""Turning what a server sent into text that a model may read. Pure; slow enough for a thread of its own."""

import codecs
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import InvalidInput

_HTML = frozenset({"text/html", "application/xhtml+xml"})
_TEXT = frozenset({"application/json", "application/ld+json", "application/xml"})


@dataclass(frozen=True, kw_only=True)
class Readable:
    """What came: its media type, its stated charset or nothing, the bytes, and from where."""

    kind: str
    charset: str
    body: bytes
    url: str


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """What it says."""

    title: str
    text: str


def readable(found: Readable) -> Extracted:
    """Return title and text of a page. Raises InvalidInput for what is not text."""
    if found.kind in _HTML:
        return _extracted(found)
    if found.kind.startswith("text/") or found.kind in _TEXT:
        return Extracted(title="", text=_decoded(found).strip())
    raise InvalidInput(f"is {found.kind}, not text", where="url", hint="give the address of a page that is text")


def _extracted(found: Readable) -> Extracted:
    try:
        import trafilatura  # noqa: PLC0415  an optional extra, and slow to import
    except ImportError as error:
        hint = "install it with: pip install 'turnkeeper[web-fetch]'"
        raise InvalidInput("reading web pages needs a package", where="web.fetch", hint=hint) from error
    html = _decoded(found) if found.charset else found.body
    page: Any = trafilatura.bare_extraction(html, url=found.url, include_comments=False, with_metadata=True)
    text = (page.text or "").strip() if page else ""
    if not text:
        raise InvalidInput("holds no text that could be found", where="url")
    return Extracted(title=" ".join((page.title or "").split()), text=text)


def _decoded(found: Readable) -> str:
    try:
        name = codecs.lookup(found.charset or "utf-8").name
    except LookupError:
        name = "utf-8"
    return found.body.decode(name, errors="replace").removeprefix("\ufeff")
