"""Reading a page over real sockets on loopback, which only a test's own settings allow."""

import asyncio
import gzip
import signal
import threading
import zlib
from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address

import psutil
import pytest

from agent_runtime.workspace.web import extract
from agent_runtime.workspace.web.addresses import Address, Target, refuse_private
from agent_runtime.workspace.web.extract import known_charset
from agent_runtime.workspace.web.page import LARGEST_BODY, MOST_REDIRECTS, Resolve, WebReader, read_text
from tests.support.clock import look_again
from tests.support.pages import Answer, Site, serving
from turnkeeper.clock import SystemClock
from turnkeeper.errors import Denied, InvalidInput, NotFound, Unreachable

ARTICLE = b"""<html><head><title>Pump  repair</title><script>steal()</script></head><body><nav>Home</nav>
<article><h1>Pump repair</h1><p>The pump at the pond was replaced in May, because its seal had worn out.</p>
<p>Water flows again, and the beds are wet in the mornings.</p></article></body></html>"""
HERE = IPv4Address("127.0.0.1")


@pytest.fixture(scope="module")
def server() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def site(server: Site) -> Site:
    server.pages.clear()
    server.asked.clear()
    server.hosts.clear()
    return server


def any_target(_: Target) -> None:
    """Refuse nothing."""


def but_here(address: Address) -> None:
    if address != HERE:
        refuse_private(address)


def names(**known: str) -> Resolve:
    async def resolve(host: str, _port: int) -> list[Address]:
        return [ip_address(address) for address in known.get(host.partition(".")[0], host).split()]

    return resolve


def reader(site: Site, *, resolve: Resolve | None = None, timeout_s: float = 30.0) -> WebReader:
    ports = frozenset({site.port})
    return WebReader(SystemClock(), resolve=resolve, refuse=but_here, ports=ports, timeout_s=timeout_s)


async def test_a_page_becomes_its_title_and_its_text(site: Site) -> None:
    site.pages["/pump"] = Answer(body=ARTICLE)
    page = await reader(site).fetch(site.url("/pump#seal"), any_target)
    assert page.title == "Pump repair"
    assert "its seal had worn out" in page.text
    assert "steal" not in page.text
    assert page.url == site.url("/pump")


async def test_plain_text_and_json_are_taken_as_they_are(site: Site) -> None:
    site.pages["/a"] = Answer(body="caf\u00e9".encode("latin-1"), kind="text/plain; charset=latin-1")
    site.pages["/b"] = Answer(body=b'{"a": 1}', kind="application/json")
    assert (await reader(site).fetch(site.url("/a"), any_target)).text == "caf\u00e9"
    assert (await reader(site).fetch(site.url("/b"), any_target)).text == '{"a": 1}'


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_without_a_tests_setting_loopback_is_refused_and_never_asked(site: Site, host: str) -> None:
    closed = WebReader(SystemClock(), ports=frozenset({site.port}))
    with pytest.raises(Denied, match="not a public address"):
        await closed.fetch(site.url("/", host), any_target)
    assert site.asked == []


async def test_a_name_with_one_address_that_is_not_public_is_refused_whole(site: Site) -> None:
    resolve = names(mixed="127.0.0.1 10.0.0.1")
    with pytest.raises(Denied, match="10.0.0.1"):
        await reader(site, resolve=resolve).fetch(site.url("/", "mixed.example"), any_target)
    assert site.asked == []


async def test_what_was_judged_is_what_is_connected_to_though_the_name_changes(site: Site) -> None:
    site.pages["/"] = Answer(status=302, headers={"Location": "/again", "Connection": "close"})
    answers = [[HERE], [IPv4Address("169.254.169.254")]]

    async def rebinding(_host: str, _port: int) -> list[Address]:
        return [*answers.pop(0)]

    with pytest.raises(Denied, match=r"169\.254\.169\.254"):
        await reader(site, resolve=rebinding).fetch(site.url("/", "rebinding.example"), any_target)
    assert site.asked == ["/"]


@pytest.mark.parametrize(
    "location", ["http://10.0.0.1/", "http://[::ffff:127.0.0.1]/", "http://169.254.169.254/latest", "http://127.0.0.2/"]
)
async def test_a_redirect_to_what_is_not_public_is_refused(site: Site, location: str) -> None:
    site.pages["/"] = Answer(status=302, headers={"Location": location})
    with pytest.raises(Denied):
        await reader(site).fetch(site.url("/"), any_target)


@pytest.mark.parametrize(
    "location", ["http://2130706433/", "http://0x7f.1/", "ftp://a/", "http://a@b/", "http://a:22/"]
)
async def test_a_redirect_to_what_is_no_plain_address_is_refused(site: Site, location: str) -> None:
    site.pages["/"] = Answer(status=302, headers={"Location": location})
    with pytest.raises(InvalidInput):
        await reader(site).fetch(site.url("/"), any_target)


async def test_the_turn_is_asked_again_at_every_redirect(site: Site) -> None:
    site.pages["/"] = Answer(status=307, headers={"Location": site.url("/secret", "other.example")})
    site.pages["/secret"] = Answer(body=ARTICLE)

    def only_first(target: Target) -> None:
        if target.host != "first.example":
            raise Denied(f"{target.host} is not reached")

    resolve = names(first="127.0.0.1", other="127.0.0.1")
    with pytest.raises(Denied, match=r"other\.example"):
        await reader(site, resolve=resolve).fetch(site.url("/", "first.example"), only_first)
    assert site.asked == ["/"]


async def test_a_chain_of_redirects_is_followed_so_far_and_no_farther(site: Site) -> None:
    for step in range(MOST_REDIRECTS):
        site.pages[f"/{step}"] = Answer(status=301, headers={"Location": f"/{step + 1}"})
    site.pages[f"/{MOST_REDIRECTS}"] = Answer(body=b"there", kind="text/plain")
    assert (await reader(site).fetch(site.url("/0"), any_target)).text == "there"
    site.pages[f"/{MOST_REDIRECTS}"] = Answer(status=301, headers={"Location": "/0"})
    with pytest.raises(Unreachable, match="redirects"):
        await reader(site).fetch(site.url("/0"), any_target)


async def test_the_host_is_told_its_name(site: Site) -> None:
    site.pages["/"] = Answer(body=b"x", kind="text/plain")
    await reader(site, resolve=names(named="127.0.0.1")).fetch(site.url("/", "named.example"), any_target)
    assert site.hosts == [f"named.example:{site.port}"]


async def test_proxy_settings_are_ignored(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    site.pages["/"] = Answer(body=b"direct", kind="text/plain")
    assert (await reader(site).fetch(site.url("/"), any_target)).text == "direct"


async def test_packed_pages_are_unpacked(site: Site) -> None:
    site.pages["/gz"] = Answer(body=gzip.compress(b"packed"), kind="text/plain", headers={"Content-Encoding": "gzip"})
    packed = zlib.compress(b"packed")
    site.pages["/zz"] = Answer(body=packed, kind="text/plain", headers={"Content-Encoding": "deflate"})
    assert (await reader(site).fetch(site.url("/gz"), any_target)).text == "packed"
    assert (await reader(site).fetch(site.url("/zz"), any_target)).text == "packed"


def bomb(mebibytes: int) -> bytes:
    """Return the beginning of a packed file of so many mebibytes of zeros: one is packed, and stands there so often."""
    packing, zeros = zlib.compressobj(wbits=31), bytes(2**20)
    head, block = (packing.compress(zeros) + packing.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return head + block * (mebibytes - 1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(body=b" " * (LARGEST_BODY + 1), kind="text/plain"), "larger than"),
        (Answer(body=bomb(200), headers={"Content-Encoding": "gzip"}), "larger than"),
        (Answer(body=b"x", headers={"Content-Encoding": "br"}), "encoded as"),
        (Answer(body=b"x", headers={"Content-Encoding": "gzip, gzip"}), "encoded as"),
        (Answer(body=b"no gzip", headers={"Content-Encoding": "gzip"}), "compression is broken"),
        (Answer(body=b"\x89PNG", kind="image/png"), "image/png"),
        (Answer(body=b"<html><body></body></html>"), "no readable text"),
    ],
    ids=["too large", "a bomb", "packed otherwise", "packed twice", "broken", "an image", "empty"],
)
async def test_what_cannot_be_taken_is_refused_with_the_reason(site: Site, answer: Answer, why: str) -> None:
    site.pages["/"] = answer
    with pytest.raises(InvalidInput, match=why):
        await reader(site).fetch(site.url("/"), any_target)


@pytest.mark.parametrize(("status", "error"), [(404, NotFound), (410, NotFound), (403, Denied), (500, Unreachable)])
async def test_what_the_server_says_is_told(site: Site, status: int, error: type[Exception]) -> None:
    site.pages["/"] = Answer(status=status)
    with pytest.raises(error, match=str(status)):
        await reader(site).fetch(site.url("/"), any_target)


async def test_a_server_that_never_answers_is_given_up(site: Site) -> None:
    site.pages["/"] = Answer(hangs=True)
    with pytest.raises(Unreachable, match=r"within 0\.1 s"):
        await reader(site, timeout_s=0.1).fetch(site.url("/"), any_target)


def of(text: str) -> bytes:
    return b"<html><head><title>t</title></head><body><article>" + text.encode() + b"</article></body></html>"


HOSTILE = {
    "blanks in the title": b"<html><head><title>" + b" " * 2_000_000 + b"</title></head><body><p>a</p></body></html>",
    "table cells": of("<table>" + "<tr><td>a<td>b" * 200_000 + "</table>"),
    "deep nesting": of("<div>" * 400_000 + "x"),
    "one long attribute": of('<p class="' + "a " * 1_500_000 + '">x</p>'),
    "many attributes": of("<p " + " ".join(f"a{number}=1" for number in range(200_000)) + ">x</p>"),
    "entities": of("&amp;" * 700_000),
    "links": of("<a href='http://a.example/2020/01/01/'>a</a>" * 80_000),
    "comments": of("<!--" * 900_000),
    "a charset of its own": b"<meta charset=punycode>" + of("a-" * 1_500_000),
}


@pytest.mark.parametrize("page", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_page_is_given_up_in_time_and_leaves_nothing_behind(site: Site, page: bytes) -> None:
    site.pages["/"] = Answer(body=page, kind="text/html; charset=punycode")
    clock, before, others = SystemClock(), threading.active_count(), set(psutil.Process().children())
    begun, longest = clock.monotonic(), 0.0
    here = WebReader(clock, refuse=but_here, ports=frozenset({site.port}), reading_s=1.0)
    reading = asyncio.create_task(here.fetch(site.url("/"), any_target))
    while not reading.done():
        at = clock.monotonic()
        await asyncio.wait([reading], timeout=0.01)
        longest = max(longest, clock.monotonic() - at)
    if (error := reading.exception()) is not None:
        assert isinstance(error, InvalidInput), error
        assert "could not be read" in str(error) or "no readable text" in str(error)
    assert clock.monotonic() - begun < 15, "given up in time"
    assert longest < 1.5, "other turns go on meanwhile"
    assert set(psutil.Process().children()) <= others, "no process is left"
    assert threading.active_count() <= before + 2, "no thread is left at work"


async def test_a_page_that_takes_too_long_says_so_to_the_model(site: Site) -> None:
    site.pages["/"] = Answer(body=HOSTILE["table cells"])
    here = WebReader(SystemClock(), refuse=but_here, ports=frozenset({site.port}), reading_s=0.05)
    with pytest.raises(InvalidInput, match=r"url: the page could not be read within 0\.05 s"):
        await here.fetch(site.url("/"), any_target)


@pytest.mark.parametrize(
    "charset",
    [
        "zlib",
        "bz2",
        "punycode",
        "idna",
        "unicode_escape",
        "rot13",
        "base64",
        "utf-7",
        "undefined",
        "a" * 5000,
        "",
        "../x",
        "\u00e9",
    ],
)
async def test_what_is_no_charset_of_pages_is_read_as_utf_8(site: Site, charset: str) -> None:
    kind = f"text/plain; charset={charset}".encode().decode("latin-1")
    if len(kind) > 255:
        with pytest.raises(InvalidInput, match="application/octet-stream"):
            await read_text("application/octet-stream", charset, b"", "", 1)
        return
    site.pages["/"] = Answer(body="caf\u00e9".encode(), kind=kind)
    assert (await reader(site).fetch(site.url("/"), any_target)).text == "caf\u00e9"


@pytest.mark.parametrize(
    ("name", "known"),
    [("UTF8", "utf-8"), ("latin1", "iso8859-1"), ("windows-1251", "cp1251"), ("Shift_JIS", "shift_jis"), ("GBK", "gbk"),
     ("koi8-r", "koi8-r"), ("ISO-8859-15", "iso8859-15"), ("euc-kr", "euc_kr"), ("us-ascii", "ascii"), ("big5", "big5"),
     ("zlib", ""), ("hex", ""), ("utf-32", ""), ("punycode", "")],
)  # fmt: skip
def test_charsets_of_pages_are_known_by_their_usual_names(name: str, known: str) -> None:
    assert known_charset(name) == known


@pytest.mark.parametrize("location", ["http://[[[", "/" + "../" * 30_000, "http://a" + "%" * 60_000, "//[::1"])
async def test_a_redirect_that_cannot_be_read_is_refused(site: Site, location: str) -> None:
    site.pages["/"] = Answer(status=302, headers={"Location": location})
    with pytest.raises((InvalidInput, Unreachable, Denied)):
        await reader(site).fetch(site.url("/"), any_target)


async def test_a_body_in_very_many_parts_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.workspace.web.page.MOST_PARTS", 3)
    site.pages["/"] = Answer(body=b"x" * (1 << 20), kind="text/plain")
    with pytest.raises(InvalidInput, match="more than 3 parts"):
        await reader(site).fetch(site.url("/"), any_target)


async def test_what_reads_a_page_gets_no_secrets_and_no_more_memory_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    seen: dict[str, object] = {}
    real = asyncio.create_subprocess_exec

    async def spawn(*argv: str, **options: object) -> asyncio.subprocess.Process:
        seen.update(options)
        return await real(*argv, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spawn)
    assert (await extract.extracted(ARTICLE, "", "http://a.example/", 30.0))[0] == "Pump repair"
    assert "OPENAI_API_KEY" not in seen["env"]  # type: ignore[operator]
    monkeypatch.setattr(extract, "MOST_ANSWER", 10)
    with pytest.raises(InvalidInput, match="too much time or memory"):
        await extract.extracted(ARTICLE, "", "http://a.example/", 30.0)


async def test_what_reads_a_page_has_a_gibibyte_of_memory_ten_seconds_and_writes_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[tuple[int, int]] = []
    ready = extract._ready

    async def look(process: asyncio.subprocess.Process) -> None:
        await ready(process)
        reader = psutil.Process(process.pid)
        limits.extend(reader.rlimit(limit) for limit in (psutil.RLIMIT_AS, psutil.RLIMIT_CPU, psutil.RLIMIT_FSIZE))

    monkeypatch.setattr(extract, "_ready", look)
    await extract.extracted(ARTICLE, "", "http://a.example/", 30.0)
    assert limits == [(1 << 30, 1 << 30), (10, 10), (0, 0)]


async def test_a_turn_that_is_cancelled_ends_the_process_that_reads_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[asyncio.subprocess.Process] = []
    ready = extract._ready

    async def begun(process: asyncio.subprocess.Process) -> None:
        await ready(process)
        readers.append(process)

    monkeypatch.setattr(extract, "_ready", begun)
    reading = asyncio.create_task(extract.extracted(HOSTILE["table cells"], "", "http://a.example/", 30.0))
    while not readers:
        await look_again()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert readers[0].returncode == -signal.SIGKILL
