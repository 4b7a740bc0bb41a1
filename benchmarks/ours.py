"""Turnkeeper, measured from the outside: real runner, real socket, real inbox. Prints one JSON document.

Run as `python -m benchmarks.ours DUE IDLE [STORE]`: DUE tasks at one moment among the idle ones in STORE, which
`python -m benchmarks.ours fill IDLE STORE` makes. Lateness is from the nominal time until the envelope is durable in
the inbox, as the runtime's own trail has it.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from protos.turnkeeper.v1 import schedules_pb2 as wire
from task_runner.assembly import assemble
from turnkeeper.eventlog import read_events
from turnkeeper.home import Home
from turnkeeper.rpc.channel import is_serving

LEAD_S = 9.0
DAEMONS = (("benchmarks.acceptor", "agent-runtime"), ("task_runner.daemon", "task-runner"))
BATCH = 2500
PATIENCE_S = 120.0


def spec(name: str, at: str) -> wire.TaskSpec:
    return wire.TaskSpec(name=name, at=at, category="catch-up-summary", channel="general", prompt="Summarise.")


async def fill(home: Home, names: list[str], at: datetime) -> None:
    async with assemble(home, daemon=False) as runner:
        for start in range(0, len(names), BATCH):
            specs = [spec(name, at.isoformat()) for name in names[start : start + BATCH]]
            await runner.service.apply_tasks(wire.ApplyTasksRequest(specs=specs))


def make_store(idle: int, store: Path) -> None:
    """Make a store with so many tasks that are due next year."""
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        home = Home(root=Path(folder) / "home")
        home.create()
        asyncio.run(fill(home, [f"idle-{n}" for n in range(idle)], datetime.now(UTC) + timedelta(days=300)))
        shutil.copy(home.schedules_db, store)


def measure(due: int, store: Path | None) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        home = Home(root=Path(folder) / "home")
        home.create()
        if store is not None:
            shutil.copy(store, home.schedules_db)
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=LEAD_S + 1 + due // 500)
        asyncio.run(fill(home, [f"due-{n}" for n in range(due)], at))
        daemons: list[subprocess.Popen[bytes]] = []
        try:
            for module, process in DAEMONS:
                daemons.append(start(home, module, process))
            assert datetime.now(UTC) < at - timedelta(seconds=1), "the daemons were not up in time"
            return wait_for(home, due, at)
        finally:
            for daemon in daemons:
                daemon.kill()
                daemon.wait()


def start(home: Home, module: str, process: str) -> "subprocess.Popen[bytes]":
    daemon = subprocess.Popen([sys.executable, "-m", module, str(home.root)], stdout=subprocess.DEVNULL)
    while not is_serving(home.socket(process)):
        assert daemon.poll() is None, f"{module} ended"
        time.sleep(0.05)
    return daemon


def wait_for(home: Home, due: int, at: datetime) -> dict[str, object]:
    deadline = time.monotonic() + PATIENCE_S
    time.sleep(max(0.0, (at - datetime.now(UTC)).total_seconds()))
    while time.monotonic() < deadline:
        time.sleep(1)  # rarely enough to disturb nobody
        received = [event for event in read_events(home.logs) if event["event"] == "fire.received"]
        if len(received) >= due:
            break
    fresh = [event for event in received if event["disposition"] == "ACCEPTED"]
    lateness = sorted((datetime.fromisoformat(event["at"]) - at).total_seconds() * 1000 for event in fresh)
    distinct = len({event["fire_id"] for event in fresh})
    return {"finished": distinct == due, "ran": len(fresh), "doubled": len(fresh) - distinct, "lateness_ms": lateness}


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        make_store(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        print(json.dumps(measure(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)))
