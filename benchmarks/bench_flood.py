"""Strangers who connect to the port for peers: what they add to the lateness of fires. Run as a program, it is them."""

import asyncio
import itertools
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.bench_tabs import free_port
from benchmarks.ours import CONFIG, Ours, cpu_s
from benchmarks.places import place
from benchmarks.report import Section, percentile, spread
from turnkeeper.constellation.peers import pairing
from turnkeeper.times import rfc3339

A_SECOND, ADDRESSES, DUE = 10_000 / 60, 250, 100
GATE = "p99 lateness under 10,000 connections a minute - without, ms"
TITLE = "Strangers at the port for peers"
ABOUT = """
A hundred fires due at one moment, with and without strangers who open 10,000 connections a minute to the port for
peers, in turn, from 250 addresses: a third says nothing, a third shows a stranger's certificate, a third sends a
handshake byte by byte. They run on the machine that is measured, at the lowest priority. The CPU is that of `peers`.
"""


def flood(times: int) -> Section:
    """Measure waves with and without strangers, one after the other."""
    without, flooded, cpu, rates = list[float](), list[float](), list[float](), list[float]()
    with place() as folder, closing(Ours(folder)) as ours:
        port = free_port()
        ours.home.config.write_text(f'{CONFIG}[peers]\nlisten = "127.0.0.1:{port}"\n')
        pairing.add_peer(ours.home, _peer(), datetime.now(UTC))
        ours.start_both()
        peers = ours.start("turnkeeper.constellation.peers", "peers")
        ours.wave(DUE)  # which warms everything up
        for _ in range(times):
            without.append(percentile(ours.wave(DUE), 0.99))
            with _strangers(port) as came:
                spent, begun = cpu_s(peers), time.monotonic()
                flooded.append(percentile(ours.wave(DUE), 0.99))
                cpu.append(100 * (cpu_s(peers) - spent) / (time.monotonic() - begun))
            rates += came
    added = [one - other for one, other in zip(flooded, without, strict=True)]
    rows = [
        ("nobody", "", spread(without, 1), "", ""),
        ("strangers", spread(rates), spread(flooded, 1), spread(added, 1), spread(cpu, 1)),
    ]
    header = (
        "who connects",
        "connections a second",
        "p99 late of 100, ms",
        "more than without, ms",
        "CPU of one core, %",
    )
    return Section(title=TITLE, about=ABOUT, header=header, rows=rows, gates={GATE: added})


def _peer() -> pairing.Peer:
    now = datetime.now(UTC)
    known = pairing.der_text(pairing.identity_from(bytes(32), now).root)
    return pairing.Peer(name="ada", address="127.0.0.1:9", certificate=known, added_at=rfc3339(now))


@contextmanager
def _strangers(port: int) -> Iterator[list[float]]:
    """Let them come for the block; give a list that holds afterwards how many came in a second."""
    words = [sys.executable, "-m", "benchmarks.bench_flood", str(port)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as strangers:
        assert strangers.stdout is not None
        assert strangers.stdin is not None
        assert strangers.stdout.readline() == "here\n"
        rate = list[float]()
        yield rate
        strangers.stdin.close()
        rate.append(float(strangers.stdout.readline()))


async def come(port: int) -> None:
    """Connect again and again until stdin is closed; print how many connections were made a second."""
    ended, came, each = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read)), 0, set[asyncio.Task[None]]()
    tls, begun = _stranger(), time.monotonic()
    for number in itertools.count():
        wait_s = begun + number / A_SECOND - time.monotonic()
        if (await asyncio.wait([ended], timeout=max(0.0, wait_s)))[0]:
            break
        came += 1
        task = asyncio.create_task(_connect(port, number, tls))
        each.add(task)
        task.add_done_callback(each.discard)
        if number == 2 * int(A_SECOND):
            print("here", flush=True)
    for task in each:
        task.cancel()
    print(came / (time.monotonic() - begun), flush=True)


async def _connect(port: int, number: int, tls: ssl.SSLContext) -> None:
    source = f"127.1.0.{1 + number % ADDRESSES}", 0
    with suppress(OSError, EOFError):
        context = tls if number % 3 == 1 else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, local_addr=source)
        try:
            for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * (number % 3 == 2):
                writer.write(bytes([byte]))
                await asyncio.sleep(1)
            await reader.read()
        finally:
            writer.close()


def _stranger() -> ssl.SSLContext:
    """Return the TLS of somebody whom the home does not know."""
    now, context = datetime.now(UTC), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own.pem"
        own.write_bytes(b"".join(pairing.identity_from(b"s" * 32, now).certificate(now)))
        context.load_cert_chain(own)
    return context


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(come(int(sys.argv[1])))
