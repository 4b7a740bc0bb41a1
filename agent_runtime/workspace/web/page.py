"""Reading of one page: resolve the host, check the addresses, connect to a checked address, enforce the limits."""

import asyncio
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from ipaddress import ip_address
from typing import Any

import httpcore2
from httpcore2 import AsyncConnectionPool, AsyncNetworkBackend, AsyncNetworkStream

from agent_runtime.workspace.web import extract
from agent_runtime.workspace.web.addresses import Address, Target, read_url, redirected, refuse_private
from turnkeeper.clock import Clock
from turnkeeper.errors import Denied, InvalidInput, NotFound, Unreachable, machine_trouble

LARGEST_BODY = 4 * 1024 * 1024  # bytes, after decompression
LONGEST_S = 30.0  # limit for all steps: names, connections, redirects, the body
MOST_REDIRECTS = 5
MOST_READINGS = 2  # pages that are parsed at the same time
MOST_PARTS = 50_000  # chunks in which a body may arrive; limited because even a tiny chunk takes time
_LONGEST_TYPE = 255
MOST_ADDRESSES = 4  # addresses of one host that are tried
_HEADERS = [
    (b"User-Agent", b"Turnkeeper/0.1 (+reads single pages on behalf of its author)"),
    (b"Accept", b"text/html, text/plain, application/json;q=0.8, text/*;q=0.5"),
    (b"Accept-Encoding", b"gzip, deflate, identity"),
]
_TEXT = frozenset({"application/json", "application/ld+json", "application/xml"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Resolve = Callable[[str, int], Awaitable[Iterable[Address]]]
Refuse = Callable[[Target], None]


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A page that was read.

    Attributes:
        url: the final address, after redirects.
    """

    url: str
    title: str
    text: str
    fetched_at: datetime


class WebReader:
    """Reader of public pages. It ignores the environment's proxy settings, because a proxy chooses its connections."""

    def __init__(
        self,
        clock: Clock,
        *,
        resolve: Resolve | None = None,
        refuse: Callable[[Address], None] = refuse_private,
        ports: frozenset[int] = frozenset(),
        timeout_s: float = LONGEST_S,
        reading_s: float = extract.LONGEST_S,
    ) -> None:
        """Take the clock; all other arguments are for tests.

        Args:
            clock: for the instant of reading.
            resolve: host and port to addresses; by default the system's resolver.
            refuse: raises Denied for a forbidden address.
            ports: allowed in addition to 80 and 443.
            timeout_s: limit of a whole reading.
            reading_s: limit of parsing the page.
        """
        self._clock = clock
        self._backend = _Pinned(resolve or _resolve, refuse)
        self._ports = ports
        self._timeout_s = timeout_s
        self._reading_s = reading_s
        self._readings = asyncio.Semaphore(MOST_READINGS)

    async def fetch(self, url: str, refuse: Refuse) -> Fetched:
        """Return the text of a page.

        Args:
            refuse: raises Denied for a target that the turn must not reach; called again at every redirect.

        Raises:
            InvalidInput: the address or a redirect is invalid, or the content is not text.
            Denied: an address is not public, or `refuse` raised it.
            NotFound: the server reports that the page does not exist.
            Unreachable: no answer in time, too many redirects, or any other failure.
        """
        try:
            pool = AsyncConnectionPool(network_backend=self._backend, max_connections=1, http1=True)
            async with asyncio.timeout(self._timeout_s), pool:
                return await self._follow(pool, read_url(url, ports=self._ports), refuse)
        except TimeoutError as error:
            raise Unreachable(f"no complete answer within {self._timeout_s:g} s", where="url") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            if (trouble := machine_trouble(error, "web")) is not None:  # not a fault of the page
                raise trouble from error
            raise Unreachable(f"cannot be read: {error or type(error).__name__}", where="url") from error

    async def _follow(self, pool: AsyncConnectionPool, target: Target, refuse: Refuse) -> Fetched:
        for _ in range(MOST_REDIRECTS + 1):
            refuse(target)
            host = target.url.split("/", 3)[2].encode("ascii")
            async with pool.stream("GET", _url(target), headers=[(b"Host", host), *_HEADERS]) as response:
                headers = {name.lower(): value.decode("latin-1") for name, value in reversed(response.headers)}
                location = headers.get(b"location", "")
                if response.status in _REDIRECTS and location:
                    target = redirected(target, location, ports=self._ports)
                    continue
                _refuse_status(response.status)
                kind, charset = _content_type(headers.get(b"content-type", ""))
                body = await _body(response.aiter_stream(), headers.get(b"content-encoding", "identity"))
            async with self._readings:
                title, text = await read_text(kind, charset, body, target.url, self._reading_s)
            return Fetched(url=target.url, title=title, text=text, fetched_at=self._clock.now())
        raise Unreachable(f"redirects more than {MOST_REDIRECTS} times", where="url")


class _Pinned(AsyncNetworkBackend):
    """A backend that resolves a host once and connects only to the checked addresses: no second look-up can differ."""

    def __init__(self, resolve: Resolve, refuse: Callable[[Address], None]) -> None:
        self._resolve = resolve
        self._refuse = refuse
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        addresses = list(await self._resolve(host, port))
        for address in addresses:
            self._refuse(address)  # one private address excludes the name, which may belong to another network
        failed: Exception = httpcore2.ConnectError(f"{host} has no address")
        for address in addresses[:MOST_ADDRESSES]:
            try:
                return await self._plain.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed


async def _resolve(host: str, port: int) -> list[Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Unreachable(f"{host} cannot be resolved: {error.strerror}", where="url") from error
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))


def _url(target: Target) -> httpcore2.URL:
    host = target.host.encode("ascii")
    return httpcore2.URL(scheme=target.scheme, host=host, port=target.port, target=target.path.encode("ascii"))


def _refuse_status(status: int) -> None:
    if status in {404, 410}:
        raise NotFound(f"the server answers {status}: the page does not exist", where="url")
    if status in {401, 403, 407, 451}:
        raise Denied(f"the server answers {status}: the page is not public", where="url")
    if not 200 <= status < 300:
        raise Unreachable(f"the server answers {status}", where="url")


def _content_type(header: str) -> tuple[str, str]:
    message = Message()
    # A longer value is not a media type, and slows down the parser.
    message["content-type"] = header if 0 < len(header) <= _LONGEST_TYPE else "application/octet-stream"
    charset = message.get_param("charset")
    return message.get_content_type(), charset if isinstance(charset, str) else ""


async def _body(stream: AsyncIterator[bytes], encoding: str) -> bytes:
    """Return the decompressed body, without ever holding more bytes than the limit. Raises InvalidInput."""
    unpack = _unpacker(encoding.strip().lower())
    body, parts = bytearray(), 0
    async for part in stream:
        parts += 1
        if parts > MOST_PARTS:
            raise InvalidInput(f"has more than {MOST_PARTS} parts", where="url")
        try:
            body += unpack(part, LARGEST_BODY + 1 - len(body))
        except zlib.error as error:
            raise InvalidInput(f"its compression is broken: {error}", where="url") from error
        if len(body) > LARGEST_BODY:
            raise InvalidInput(f"is larger than {LARGEST_BODY // 2**20} MiB", where="url")
    return bytes(body)


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    if encoding in {"", "identity"}:
        return lambda part, most: part[:most]
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InvalidInput(f"is encoded as {encoding[:40]!r}, which was not requested", where="url")
    unpacked = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # detects a gzip or zlib header
    return unpacked.decompress


async def read_text(kind: str, charset: str, body: bytes, url: str, reading_s: float) -> tuple[str, str]:
    """Return title and text of a page.

    Args:
        kind: the media type.
        charset: the charset that the server states; empty if unknown.
        body: the server's answer, decompressed.
        reading_s: the longest time for parsing, in seconds.

    Raises:
        InvalidInput: the page is not text, cannot be read in time, or has no text.
    """
    if kind in extract.HTML:
        return await extract.extracted(body, charset, url, reading_s)
    if kind.startswith("text/") or kind in _TEXT:
        return "", body.decode(extract.known_charset(charset) or "utf-8", errors="replace").removeprefix(
            "\ufeff"
        ).strip()
    raise InvalidInput(f"is {kind}, not text", where="url", hint="give the address of a text page")
