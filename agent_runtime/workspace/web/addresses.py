"""The addresses whose pages may be read. Pure.

URLs are parsed strictly. Anything that a browser would silently repair (numbers for addresses, look-alike characters,
blanks) is refused, because the repaired form and the checked form could differ. A name is not trusted: only its
resolved addresses are checked, and connections go only to these addresses.

Source: the special-purpose address registries (RFC 6890 and its updates), RFC 6052 and 8215 for translated addresses,
RFC 3056 for 6to4, RFC 4380 for Teredo; the WHATWG URL standard for hosts that end in a number.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, urljoin, urlsplit

import idna

from turnkeeper.errors import Denied, InvalidInput

PORTS = {"http": 80, "https": 443}
LONGEST_URL = 2048
Address = IPv4Address | IPv6Address

_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_KEPT = "/?&=+$,;:@!*'()[]%~"  # allowed in a path and query
# IPv6 addresses that a gateway or tunnel may convert to the IPv4 address inside: mapped and compatible addresses, NAT64
# (RFC 6052, 8215), 6to4, Teredo. An ISATAP address carries an IPv4 address behind the marks 0:5efe and 200:5efe.
_CARRIES_ANOTHER = tuple(
    map(ip_network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"))
) + tuple(map(ip_network, ("2002::/16", "2001::/32")))
_ISATAP = frozenset({0x5EFE, 0x200_5EFE})
# Blocks of the special-purpose registries that the properties of `ipaddress` may leave out, depending on Python's
# version. "192.31.196.0/24", "192.175.48.0/24" and "2620:4f:8000::/48" are the servers that answer for private
# addresses (AS112), "192.52.193.0/24" relays multicast, "3ffe::/16" was returned.
_NEVER = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            *("2001::/23", "2001:db8::/32", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20"),
        ),
    )
)
_GIVEN_OUT = IPv6Network("2000::/3")  # all other IPv6 addresses are not public


@dataclass(frozen=True, kw_only=True)
class Target:
    """A URL that may be requested if its host resolves to public addresses.

    Attributes:
        scheme: http or https.
        host: ASCII, lower case, without a final dot; an address without brackets.
        port: 80 or 443, unless a test allows others.
        path: path and query, percent-encoded.
        url: the whole URL as requested and cited, without a fragment.
    """

    scheme: str
    host: str
    port: int
    path: str
    url: str


def read_url(url: str, *, ports: frozenset[int] = frozenset()) -> Target:
    """Return the target of a URL.

    Args:
        url: absolute, http or https.
        ports: allowed in addition to 80 and 443.

    Raises:
        InvalidInput: the URL is invalid, carries a user or password, or names another port.
    """
    if len(url) > LONGEST_URL:
        raise _bad(f"is {len(url)} characters long; the limit is {LONGEST_URL}")
    if any(character <= " " or character in "\\\x7f" for character in url):
        raise _bad("contains a blank, a control character or a backslash")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
    except ValueError as error:
        raise _bad(f"cannot be read: {error}") from error
    if parts.scheme not in PORTS:
        raise _bad("does not begin with http:// or https://")
    if "@" in parts.netloc:
        raise _bad("carries a user or a password")
    host = _host(host)
    standard = PORTS[parts.scheme]
    port = standard if port is None else port
    if port not in {*PORTS.values(), *ports}:
        raise _bad(f"names port {port}; only {' and '.join(map(str, PORTS.values()))} are allowed")
    path = quote(parts.path or "/", safe=_KEPT) + (f"?{quote(parts.query, safe=_KEPT)}" if parts.query else "")
    shown = f"[{host}]" if ":" in host else host
    whole = f"{parts.scheme}://{shown}{'' if port == standard else f':{port}'}{path}"
    return Target(scheme=parts.scheme, host=host, port=port, path=path, url=whole)


def redirected(target: Target, location: str, *, ports: frozenset[int] = frozenset()) -> Target:
    """Return the target of a redirect, parsed as strictly as the first address. Raises InvalidInput."""
    if len(location) > LONGEST_URL:
        raise _bad(f"redirects to an address of {len(location)} characters; the limit is {LONGEST_URL}")
    try:
        url = urljoin(target.url, location)
    except ValueError as error:
        raise _bad(f"redirects to an invalid address: {error}") from error
    return read_url(url, ports=ports)


def refuse_private(address: Address) -> None:
    """Raise Denied unless an address belongs to the public internet.

    >>> refuse_private(ip_address("93.184.215.14"))
    """
    if (why := _why_not(address)) is not None:
        raise Denied(f"{address} is {why}, not a public address", where="url")


def _why_not(address: Address) -> str | None:
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return "a link-local address"
        if any(address in network for network in _CARRIES_ANOTHER):
            return "an address that embeds another address"
        if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return "an address that embeds another address"
    for known, why in (
        (address.is_loopback, "this machine"),
        (address.is_unspecified, "no address"),
        (address.is_multicast, "multicast"),
        (address.is_link_local, "a link-local address"),
        (address.is_private, "private"),
        (address.is_reserved or any(address in network for network in _NEVER), "reserved"),
        (isinstance(address, IPv6Address) and address not in _GIVEN_OUT, "reserved"),
        (not address.is_global, "not routed"),
    ):
        if known:
            return why
    return None


def _host(host: str) -> str:
    """Return a host in the normal form that is resolved. Raises InvalidInput."""
    if not host:
        raise _bad("names no host")
    if ":" in host:
        return str(_address(host))
    ascii_host = _ascii(host).removesuffix(".")
    labels = ascii_host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return str(_address(ascii_host))
    if len(ascii_host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _bad(f"{host[:80]!r} is not a host name")
    return ascii_host


def _ascii(host: str) -> str:
    if host.isascii():
        return host.lower()
    try:
        encoded = idna.encode(host, uts46=True).decode("ascii").lower()
    except idna.IDNAError as error:
        raise _bad(f"{host[:80]!r} is not a host name: {error}") from error
    if "xn--" not in encoded:
        raise _bad(f"{host[:80]!r} imitates {encoded[:80]!r} with other characters")
    return encoded


def _address(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError as error:
        raise _bad(f"{text[:80]!r} is not an address in its usual form") from error


def _bad(what: str) -> InvalidInput:
    return InvalidInput(what, where="url", hint="give the full address of a public page, such as https://example.org/")
