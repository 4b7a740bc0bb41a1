"""Turnkeeper, measured from the outside: a real runner, its real socket, the runtime's accepting half, a real inbox.

Lateness is from the nominal time until the envelope is durable in the inbox, as the runtime's own trail has it.
"""

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from task_runner.service import changes
from task_runner.service.task_spec import Defaults
from task_runner.store.store import Store
from turnkeeper.config.home import Home
from turnkeeper.entropy import SystemEntropy
from turnkeeper.rpc.channel import Caller, is_serving
from turnkeeper.v1 import schedules_pb2 as wire

RUNTIME, RUNNER = ("benchmarks.acceptor", "agent-runtime"), ("task_runner.daemon", "task-runner")
PATIENCE_S = 120.0
CONFIG = "[scheduler]\ncatch_up_concurrency = 1000\ncatch_up_stagger_s = 0\n"


def spec(name: str, **when: str) -> wire.TaskSpec:
    return wire.TaskSpec(name=name, category="catch-up-summary", channel="general", prompt="Summarise.", **when)


def fill(home: Home, specs: Sequence[wire.TaskSpec], now: datetime) -> None:
    """Write tasks into a store that nobody has open, as if `apply` had done so at `now`."""
    store = Store(home.schedules_db)
    defaults, entropy = Defaults(timezone="UTC"), SystemEntropy()
    asyncio.run(store.run(lambda session: changes.apply(session, specs, defaults, now, entropy)))
    store.close()


def clone_idle(home: Home, count: int) -> None:
    """Write many tasks that are due next year: one by `apply`, the others as copies of its rows, in SQL."""
    now = datetime.now(UTC)
    fill(home, [spec("idle", at=(now + timedelta(days=300)).isoformat())], now)
    connection = sqlite3.connect(home.schedules_db)
    changed = {
        "id": "printf('task-%08x', n)",
        "task_id": "printf('task-%08x', n)",
        "name": "'idle-' || n",
        "definition": "replace(definition, '\"idle\"', '\"idle-' || n || '\"')",
        "wake_us": "wake_us + n * 1000000",
    }
    for table in ("tasks", "revisions"):
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        values = ", ".join(changed.get(column, column) for column in columns)
        connection.execute(
            f"WITH RECURSIVE line(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM line WHERE n < {count})"
            f" INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table}, line"
        )
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


class Ours:
    """A home with its two daemons, until it is closed."""

    def __init__(self, folder: Path, *, idle: int = 0) -> None:
        self.home = Home(root=folder / "home")
        self.home.create()
        self.home.config.write_text(CONFIG)
        if idle:
            clone_idle(self.home, idle)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._read: dict[Path, int] = {}
        self._names = 0

    def start(self, module: str, process: str, *, wait: bool = True, flag: str = "") -> "subprocess.Popen[bytes]":
        daemon = subprocess.Popen(
            [sys.executable, "-m", module, *([flag] if flag else []), str(self.home.root)], stdout=subprocess.DEVNULL
        )
        self._daemons.append(daemon)
        while wait and not is_serving(self.home.socket(process)):
            assert daemon.poll() is None, f"{module} ended"
            time.sleep(0.05)
        return daemon

    def start_both(self) -> "Ours":
        self.start(*RUNTIME)
        self.start(*RUNNER)
        return self

    def apply(self, specs: Sequence[wire.TaskSpec]) -> float:
        """Create tasks in one request; return the seconds until the answer."""
        caller = Caller(self.home, deadline_s=PATIENCE_S)
        begun = time.perf_counter()
        answer = caller.ApplyTasks(wire.ApplyTasksRequest(specs=specs))
        took_s = time.perf_counter() - begun
        caller.close()
        assert len(answer.applied) == len(specs)
        return took_s

    def names(self, count: int) -> Iterator[str]:
        for _ in range(count):
            self._names += 1
            yield f"made-{self._names}"

    def wave(self, due: int, declared: Callable[[], object] = lambda: None, *, lead_s: float = 3.0) -> list[float]:
        """Let so many tasks fall due at one moment; return by how many ms each envelope was late, least first.

        `declared` is called once the tasks are there, `lead_s` before they are due, or a little longer for many.
        """
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lead_s + due // 1500)
        list(self.facts("fire.received"))
        self.apply([spec(name, at=at.isoformat()) for name in self.names(due)])
        assert datetime.now(UTC) < at - timedelta(seconds=0.5), "the tasks were not made in time"
        declared()
        time.sleep((at - datetime.now(UTC)).total_seconds() + 0.5)
        received = self.wait_for("fire.received", due)
        assert len({fact["fire_id"] for fact in received}) == due, "a fire was lost"
        fresh = [fact for fact in received if fact["disposition"] == "ACCEPTED"]
        assert len(fresh) == due, "a fire was doubled"
        return sorted((datetime.fromisoformat(fact["at"]) - at).total_seconds() * 1000 for fact in fresh)

    def wait_for(self, event: str, count: int) -> list[dict[str, Any]]:
        """Return the next facts of a name, once there are so many."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} {event}"
            found += self.facts(event)
            if len(found) < count:
                time.sleep(0.25)  # rarely enough to disturb nobody
        return found

    def facts(self, event: str) -> Iterator[dict[str, Any]]:
        """Yield the facts of a name that the trails have got since they were read last."""
        for path in sorted(self.home.logs.glob("events-*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            yield from (fact for line in whole.splitlines() if (fact := json.loads(line))["event"] == event)

    def close(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()
        self._daemons.clear()


def cpu_s(daemon: "subprocess.Popen[bytes]") -> float:
    times = psutil.Process(daemon.pid).cpu_times()
    return float(times.user + times.system)


def resident_mb(daemon: "subprocess.Popen[bytes]") -> float:
    return float(psutil.Process(daemon.pid).memory_info().rss) / 1e6
