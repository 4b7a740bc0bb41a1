"""Open tabs of the page: what they add to the lateness of fires. Run as a program, it is the browser."""

import asyncio
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from urllib.parse import urlencode

from benchmarks.ours import CONFIG, Ours
from benchmarks.places import place
from benchmarks.report import Section, percentile, spread
from turnkeeper.entropy import SystemEntropy
from turnkeeper.gateway.keys import Keys, sign_token
from turnkeeper.gateway.page.live import TABS_A_SECOND

TABS, OF_ONE_LOGIN, DUE = 50, 8, 100
DECLARED_S = TABS / TABS_A_SECOND + 5.0  # before they are due: tabs have been told of it, and may be told of the next
GATE = "p99 lateness with 50 tabs - without, ms"
TITLE = "Open tabs"
ABOUT = """
A hundred fires due at one moment, with and without the page open in 50 tabs, in turn. Each tab has its stream, and is
told what changes. The one in front also asks for the first page again whenever it is told. (The page closes the streams
of tabs that nobody sees.) The tasks are made so early that the tabs have been told, and are ready to be told of the
fires. The gateway runs in both cases, and the browser on the machine that is measured.
"""


def tabs(times: int) -> Section:
    """Measure waves with and without tabs, one after the other."""
    without, open_ = list[float](), list[float]()
    with place() as folder, closing(Ours(folder)) as ours:
        port = free_port()
        ours.home.config.write_text(f"{CONFIG}[web]\nport = {port}\n")
        ours.start_both()
        ours.start("gateway", "web")
        logins = [_log_in(ours, port) for _ in range(0, TABS, OF_ONE_LOGIN)]
        ours.wave(DUE)  # which warms everything up
        for _ in range(times):
            without.append(percentile(ours.wave(DUE, lead_s=DECLARED_S), 0.99))
            with _open(port, logins):
                open_.append(percentile(ours.wave(DUE, lead_s=DECLARED_S), 0.99))
    added = [one - other for one, other in zip(open_, without, strict=True)]
    rows = [("none", spread(without, 1), ""), ("50 tabs", spread(open_, 1), spread(added, 1))]
    header = ("open", "p99 late of 100, ms", "more than without, ms")
    return Section(title=TITLE, about=ABOUT, header=header, rows=rows, gates={GATE: added})


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def _log_in(ours: Ours, port: int) -> str:
    """Return the cookie of another login."""
    name = f"turnkeeper.localhost:{port}"
    token = sign_token(Keys(ours.home).login_secret(), datetime.now(UTC), SystemEntropy())
    sent = {"Host": name, "Origin": f"http://{name}", "Content-Type": "application/x-www-form-urlencoded"}
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("POST", "/ui/login", urlencode({"token": token}), sent)
        answer = connection.getresponse()
        assert answer.status == 303, answer.read()
        return str(answer.getheader("set-cookie")).partition(";")[0]


@contextmanager
def _open(port: int, logins: list[str]) -> Iterator[None]:
    """Open the tabs for the block."""
    words = [sys.executable, "-m", "benchmarks.bench_tabs", str(port), *logins]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as browser:
        assert browser.stdout is not None
        assert browser.stdin is not None
        assert browser.stdout.readline() == "open\n"
        time.sleep(2)  # what they were told at first is over
        yield
        browser.stdin.close()


async def browse(port: int, logins: list[str]) -> None:
    """Keep the tabs open until stdin is closed."""
    opened = [asyncio.Event() for _ in range(TABS)]
    async with asyncio.TaskGroup() as group:
        each = [
            group.create_task(_tab(port, logins[n // OF_ONE_LOGIN], opened[n], in_front=not n)) for n in range(TABS)
        ]
        for one in opened:
            await one.wait()
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in each:
            task.cancel()


async def _tab(port: int, cookie: str, opened: asyncio.Event, *, in_front: bool) -> None:
    async with _asked(port, "/ui/live", cookie) as told:
        opened.set()
        while line := await told.readline():
            if in_front and line.startswith(b"event: changed"):
                async with _asked(port, "/ui/", cookie) as page:
                    await page.read()


@asynccontextmanager
async def _asked(port: int, path: str, cookie: str) -> AsyncIterator[asyncio.StreamReader]:
    """Ask for a path, and read what comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: turnkeeper.localhost:{port}\r\nCookie: {cookie}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        status = await reader.readline()
        assert b" 200 " in status, status
        yield reader
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(browse(int(sys.argv[1]), sys.argv[2:]))
