"""Two runtimes with homes of their own share one database: each thread has one owner, and nothing is lost or doubled."""

import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from agent_runtime.store import schema
from tests.support.cluster import Do, doing, end_lease
from tests.support.forked_daemons import RUNTIME, Forked
from turnkeeper.clock import SystemClock
from turnkeeper.config.home import Home
from turnkeeper.rpc.channel import is_serving
from turnkeeper.storage.server.handover import SCHEMA
from turnkeeper.storage.server.url import in_schema
from turnkeeper.v1 import agent_runtime_pb2 as wire

CLOCK = SystemClock()
PATIENCE_S = 60.0
THREADS, OF_EACH = 10, 5
OVER = ("SUCCEEDED", "SILENT", "FAILED", "CANCELLED")


class Node:
    """A runtime as a process of its own, on a home of its own."""

    def __init__(self, home: Home, url: str, node: str = "") -> None:
        self.home = home
        named = f'[node]\nname = "{node}"\n' if node else ""
        home.config.write_text(f'[store]\nurl = "{url}"\n[categories]\nautonomous_allowed = ["loop", "note"]\n{named}')
        self.process = Forked(home, RUNTIME, home.root / "stderr", {})

    def wait(self) -> None:
        until(lambda: is_serving(self.home.socket("agent-runtime")) or self.process.poll(), "the daemon answers")
        assert self.process.poll() is None

    def owner(self, do: Do) -> bool:
        """Return whether it is a living owner of threads."""
        mine = schema.owners.c.owner.contains(f"/{self.process.pid}/") & (schema.owners.c.until_us > 0)
        return bool(do(lambda c: c.execute(select(func.count()).select_from(schema.owners).where(mine)).scalar()))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def until(true: Callable[[], Any], what: str) -> None:
    deadline = CLOCK.monotonic() + PATIENCE_S
    while not true():
        assert CLOCK.monotonic() < deadline, f"it never came to be that {what}"
        CLOCK.block(0.05)


@contextmanager
def made_home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        made = Home(root=Path(folder) / "home")
        made.create()
        yield made


@pytest.fixture
def pair(shared_url: str) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        one, two = (Node(stack.enter_context(made_home()), shared_url) for _ in range(2))
        for node in (one, two):
            stack.callback(node.end)
        for node in (one, two):
            node.wait()
        yield one, two


@pytest.fixture
def do(shared_url: str) -> Iterator[Do]:
    with doing(in_schema(shared_url, SCHEMA)) as made:
        yield made


def fire(number: int) -> dict[str, Any]:
    """Return what a runner hands over for a fire."""
    thread = f"thread-{number % THREADS}"
    request = wire.FireRequest(
        fire_id=f"task-00000001@{number}", attempt=1, task_id="task-00000001", task_name="digest", channel="main",
        kind="scheduled", category="loop", prompt=f"Say {number}.", thread_id=thread,
    )  # fmt: skip
    request.nominal_at.FromSeconds(1_790_000_000 + number)
    named = {"key": f"fire:{request.fire_id}:1", "thread_id": thread, "agent": "agent0", "kind": "fire"}
    return {**named, "envelope": request.SerializeToString()}


def ended(connection: Connection) -> int:
    over = schema.turn_events.c.state.in_(OVER)
    return connection.execute(select(func.count()).select_from(schema.turn_events).where(over)).scalar() or 0


def test_turns_go_on_elsewhere_when_a_machine_stops_or_dies(pair: tuple[Node, Node], do: Do) -> None:
    one, two = pair
    put(do, 0, THREADS * OF_EACH)
    until(lambda: do(ended) >= 5, "some turns are over")
    one.signal(signal.SIGSTOP)
    do(lambda c: end_lease(c, one.process.pid))
    until(lambda: do(ended) == THREADS * OF_EACH, "the other has taken all threads and ends their turns")
    one.signal(signal.SIGCONT)
    until(lambda: one.owner(do), "it has noticed, and is an owner anew")
    put(do, THREADS * OF_EACH, THREADS * OF_EACH)
    until(lambda: do(ended) >= THREADS * OF_EACH + 5, "some more turns are over")
    two.end()
    do(lambda c: end_lease(c, two.process.pid))
    until(lambda: do(ended) == 2 * THREADS * OF_EACH and not do(left), "the first ends all of them")
    check_history(do)


def put(do: Do, first: int, count: int) -> None:
    do(lambda c: schema.handover.put_all(c, [fire(n) for n in range(first, first + count)], CLOCK.now()))


def left(connection: Connection) -> list[str]:
    return list(connection.execute(select(schema.envelopes.c.key)).scalars())


def check_history(do: Do) -> None:
    """Each fire ended once, well, in the order of its thread; no turn began while another of its thread ran."""
    kept = select(schema.turn_events).where(schema.turn_events.c.state.in_(["STARTED", *OVER]))
    rows = do(lambda c: c.execute(kept.order_by(schema.turn_events.c.sequence)).all())
    running: dict[str, str] = {}
    order: dict[str, list[int]] = {}
    for row in rows:
        if row.state == "STARTED":
            assert row.thread_id not in running, "two turns at a time"
            running[row.thread_id] = row.turn_id
            order.setdefault(row.thread_id, []).append(int(row.fire_id.rpartition("@")[2]))
        else:
            assert running.pop(row.thread_id) == row.turn_id
            assert row.state in {"SUCCEEDED", "SILENT"}, row.error
    assert not running
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert set(Counter(row.fire_id for row in rows).values()) == {2}
