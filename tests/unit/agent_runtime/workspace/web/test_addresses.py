"""Which URLs and addresses may be asked: everything that is not plainly public is refused."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.workspace.web.addresses import read_url, redirected, refuse_private
from turnkeeper.errors import Denied, InvalidInput

NOT_A_PUBLIC_URL = {
    "no scheme": "example.org/",
    "another scheme": "ftp://example.org/",
    "a file": "file:///etc/passwd",
    "no host": "http:///x",
    "a user": "http://user@example.org/",
    "a user and a password": "http://a:b@example.org/",
    "an empty user": "http://@example.org/",
    "another port": "http://example.org:8080/",
    "port nought": "http://example.org:0/",
    "a port that is none": "http://example.org:http/",
    "a port too large": "http://example.org:99999/",
    "a decimal address": "http://2130706433/",
    "an octal address": "http://0177.0.0.1/",
    "a hexadecimal address": "http://0x7f000001/",
    "a hexadecimal part": "http://127.0.0.0x1/",
    "a bare hexadecimal mark": "http://127.0.0.0x/",
    "a short address": "http://127.1/",
    "leading noughts": "http://127.000.000.001/",
    "a final dot behind a number": "http://2130706433./",
    "full-width digits": "http://\uff11\uff12\uff17.0.0.1/",
    "full-width letters": "http://\uff45xample.org/",
    "circled digits": "http://\u2460\u2461\u2466.0.0.1/",
    "ideographic full stops": "http://127\u30020\u30020\u30021/",
    "a soft hyphen": "http://local\u00adhost/",
    "an address with too many parts": "http://1.2.3.4.5/",
    "an address out of range": "http://256.0.0.1/",
    "broken brackets": "http://[::1/",
    "what is no address in brackets": "http://[localhost]/",
    "a blank": "http://example.org/ x",
    "a tab": "http://exam\tple.org/",
    "a line break": "http://example.org/\r\nHost: internal",
    "NUL": "http://example.org/\0",
    "a backslash": "http://example.org\\@internal/",
    "an empty label": "http://example..org/",
    "a label too long": f"http://{'a' * 64}.org/",
    "a name too long": f"http://{'a.' * 130}org/",
    "a percent sign in the host": "http://127.0.0.1%2f.example.org/",
    "too long": f"https://example.org/{'a' * 2048}",
    "nothing": "",
}

NOT_PUBLIC = (
    *(
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "169.254.169.254",
    ),
    *("100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255", "192.88.99.1"),
    *(
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
    ),
    *("2001::1", "2001:db8::1", "fc00::1", "fd12:3456::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "100::1"),
)


# The IANA special-purpose registries, every block; first and last address of each.
REGISTRY = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32", "192.0.0.10/32", "192.0.0.170/31", "192.0.2.0/24"),
    *("192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32", "224.0.0.0/4"),
    *("::1/128", "::/128", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64"),
    *("2001::/23", "2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32"),
    *("2001:4:112::/48", "2001:10::/28", "2001:20::/28", "2001:30::/28", "2001:db8::/32", "2002::/16"),
    *("2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "ff00::/8", "3ffe::/16", "4000::/3"),
)
EMBEDDED = ("::ffff:0:10.0.0.1", "::10.0.0.1", "2002:a00:1::1", "2606:4700::5efe:a00:1", "2606:4700::200:5efe:a00:1")


@pytest.mark.parametrize("block", REGISTRY)
def test_no_address_of_a_special_purpose_block_is_public(block: str) -> None:
    network = ip_network(block)
    for address in (network.network_address, network.broadcast_address):
        with pytest.raises(Denied):
            refuse_private(address)


@pytest.mark.parametrize("address", EMBEDDED)
def test_an_address_that_carries_another_is_not_public(address: str) -> None:
    with pytest.raises(Denied, match="embeds"):
        refuse_private(ip_address(address))


@pytest.mark.parametrize("url", NOT_A_PUBLIC_URL.values(), ids=NOT_A_PUBLIC_URL.keys())
def test_what_is_not_the_plain_address_of_a_page_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        read_url(url)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(Denied):
        refuse_private(ip_address(address))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.215.14", "172.32.0.1", "2606:4700::1111", "2a00:1450:4001::1", "3f00::1"]
)
def test_public_addresses_are_taken(address: str) -> None:
    refuse_private(ip_address(address))


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://example.org", "https://example.org/"),
        ("HTTPS://Example.ORG./a b", None),
        ("https://Example.ORG./a%20b?x=1#part", "https://example.org/a%20b?x=1"),
        ("http://example.org:80/", "http://example.org/"),
        ("http://example.org:443/", "http://example.org:443/"),
        ("https://b\u00fccher.example/\u00e9", "https://xn--bcher-kva.example/%C3%A9"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
        ("http://[2606:4700:0::1111]/", "http://[2606:4700::1111]/"),
    ],
)
def test_a_url_has_one_form_in_which_it_is_asked(url: str, asked: str | None) -> None:
    if asked is None:
        with pytest.raises(InvalidInput):
            read_url(url)
    else:
        assert read_url(url).url == asked
        assert read_url(asked).url == asked


def test_a_redirect_is_read_as_strictly() -> None:
    start = read_url("https://example.org/a/b")
    assert redirected(start, "../c").url == "https://example.org/c"
    assert redirected(start, "//other.example/").host == "other.example"
    with pytest.raises(InvalidInput):
        redirected(start, "http://2130706433/")
    with pytest.raises(InvalidInput):
        redirected(start, "file:///etc/passwd")


@given(st.text(max_size=60))
def test_whatever_the_host_it_is_refused_or_plain_ascii(host: str) -> None:
    try:
        target = read_url(f"http://{host}/")
    except InvalidInput:
        return
    assert target.host.isascii()
    assert not set(target.host) & set(" @\\%\x00")
    assert read_url(target.url) == target
