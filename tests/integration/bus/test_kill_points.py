"""Death at every write, link, rename, unlink and sync of each protocol, then the next process, then a checker."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.bus.killpoints import PROTOCOLS, message, open_inbox
from turnkeeper.bus.durable_writes import GroupingFiles, writer_of
from turnkeeper.bus.envelope import decode, encode
from turnkeeper.bus.inbox import FOLDERS

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.process
SHORTEST = {
    "put": 8,
    "put_all": 28,
    "claim": 8,
    "archive": 14,
    "quarantine": 6,
    "requeue": 8,
    "drop": 8,
    "prune": 6,
    "adopt": 6,
    "withdraw": 6,
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: a kill leaves what the kernel was told, wherever that lies."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.integration.bus.killpoints", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def lying(folder: Path) -> dict[str, list[Path]]:
    return {
        place: [path for path in sorted((folder / "agent0" / place).iterdir()) if not path.name.startswith(".")]
        for place in FOLDERS
    }


def check_after(folder: Path, *, pruned: bool) -> None:
    """Be the next process: nothing answered for is lost, nothing torn, nothing twice, and work goes on."""
    promised = set((folder / "answered").read_text().split())
    inbox = open_inbox(folder, GroupingFiles())
    handed = inbox.adopt()
    inbox.archive_all(handed)
    while claimed := inbox.claim(100):
        inbox.archive_all(claimed)
        handed += claimed
    for item in inbox.quarantined():
        inbox.requeue(item.name)
        inbox.archive_all(inbox.claim(10))
    assert inbox.adopt() == []
    found = lying(folder)
    assert [len(found[place]) for place in ("inbox", "claimed", "quarantine")] == [0, 0, 0], found
    assert not [name for name in os.listdir(folder / "agent0" / "inbox") if writer_of(name) is not None]
    there = Counter()
    for path in found["delivered"]:
        envelope = decode(path.read_bytes())
        there[envelope.id] += 1
        assert path.read_bytes() == encode(message(envelope.id, key=envelope.idempotency_key))
    assert set(there.values()) <= {1}, there
    assert pruned or promised <= set(there), promised - set(there)
    assert Counter(item.envelope.idempotency_key for item in handed)["k1"] <= 1
    assert inbox.put(message("later", key="later")).fresh
    assert [item.envelope.text for item in inbox.claim(1)] == ["later"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_death_at_every_step_loses_nothing(protocol: str, folder: Path) -> None:
    done = child(str(folder), protocol, "sweep")
    assert done.returncode == 0, done.stderr
    deaths = json.loads(done.stdout)
    assert len(deaths) >= SHORTEST[protocol], deaths
    for death in deaths:
        check_after(folder / death, pruned=protocol == "prune")


def traced(folder: Path, protocol: str, call: str, nth: int) -> bool:
    """Run the protocol under strace, dying at the nth `call` on the agent's own files; True if it died."""
    (folder / "agent0").mkdir(parents=True, mode=0o700)
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    command += ["-e", f"inject={call}:signal=KILL:when={nth}"]
    for place in ("inbox", "claimed", "delivered"):
        command += ["-P", str(folder / "agent0" / place)]
    command += [sys.executable, "-m", "tests.integration.bus.killpoints", str(folder), protocol, "0", "none"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode != 0


def strace_works() -> bool:
    return (
        bool(shutil.which("strace"))
        and subprocess.run(["strace", "-qq", "true"], capture_output=True, check=False).returncode == 0
    )


@pytest.mark.skipif(not strace_works(), reason="strace is absent or may not trace here")
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize(("protocol", "call"), [("put", "fsync"), ("archive", "fsync")])
def test_death_inside_a_system_call_loses_nothing(protocol: str, call: str, nth: int, folder: Path) -> None:
    folder /= "traced"
    died = traced(folder, protocol, call, nth)
    if not died:
        assert nth > 1, "no such call was made"
    if (folder / "answered").exists():
        check_after(folder, pruned=False)
