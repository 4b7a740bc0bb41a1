"""One protocol of the bus in a process that dies before or after its nth step on files.

Run as `python -m tests.integration.bus.killpoints FOLDER PROTOCOL STEP SIDE`, or with STEP 0 for a run that lives and
prints its steps. What it was answered for stands in `FOLDER/answered`.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.clock import START, ManualClock
from tests.support.inboxes import put_all
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import Inbox, Retention
from turnkeeper.entropy import SystemEntropy

PROTOCOLS = ("put", "put_all", "claim", "archive", "quarantine", "requeue", "drop", "prune", "adopt", "withdraw")


class DyingFiles(GroupingFiles):
    """Counts every step that changes something, and dies at the one it was told."""

    def __init__(self, step: int, side: str) -> None:
        super().__init__()
        self._step = step
        self._side = side
        self.steps: list[str] = []
        self.armed = False

    def _pass(self, name: str, work: Callable[[], None]) -> None:
        if not self.armed:
            work()
            return
        self.steps.append(name)
        here = len(self.steps) == self._step
        if here and self._side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            work()
        finally:
            if here:
                os.kill(os.getpid(), signal.SIGKILL)

    def write_synced(self, path: Path, data: bytes) -> None:
        self._pass("write", lambda: super(DyingFiles, self).write_synced(path, data))

    def write_group(self, items):
        failures = []
        self._pass("write group", lambda: failures.extend(super(DyingFiles, self).write_group(items)))
        return failures

    def link(self, source: Path, target: Path) -> None:
        self._pass("link", lambda: super(DyingFiles, self).link(source, target))

    def rename(self, source: Path, target: Path) -> None:
        self._pass("rename", lambda: super(DyingFiles, self).rename(source, target))

    def unlink(self, path: Path) -> None:
        self._pass("unlink", lambda: super(DyingFiles, self).unlink(path))

    def sync_folder(self, folder: Path) -> None:
        self._pass("sync", lambda: super(DyingFiles, self).sync_folder(folder))


def message(text: str, key: str = "") -> Envelope:
    return Envelope(id=text, sender="author", to="agent0", kind="message", text=text, at=START, idempotency_key=key)


def open_inbox(folder: Path, files: GroupingFiles, most: int = 100) -> Inbox:
    retention = Retention(most=most)
    return Inbox(
        folder / "agent0",
        files=files,
        clock=ManualClock(),
        entropy=SystemEntropy(),
        settles_keys=True,
        retention=retention,
    )


def answered(folder: Path, *texts: str) -> None:
    with (folder / "answered").open("a") as file:
        file.write("".join(f"{text}\n" for text in texts))


def perform(folder: Path, protocol: str, files: DyingFiles) -> None:
    """Prepare unarmed, then do the protocol armed."""
    inbox = open_inbox(folder, files)
    before = [message("p1", key="k1"), message("p2"), message("p3", key="k3")]
    put_all(inbox, before)
    answered(folder, "p1", "p2", "p3")
    if protocol in {"put", "put_all"}:
        new = [message(f"n{place}", key=f"n{place}") for place in range(1 if protocol == "put" else 6)]
        files.armed = True
        put_all(inbox, new)
        answered(folder, *(item.text for item in new))
        return
    if protocol == "withdraw":
        name = min(path.name for path in (inbox.folder / "inbox").glob("[!.]*"))
        files.armed = True
        inbox.withdraw(name)
        return
    if protocol == "claim":
        files.armed = True
        inbox.claim(10)
        return
    if protocol == "drop":
        open_inbox(folder, GroupingFiles()).put(message("p1", key="k1"))
        twin = Inbox(folder / "agent0", files=GroupingFiles(), clock=ManualClock(), entropy=SystemEntropy())
        twin._hints = {}
        twin.put(message("twin", key="k1"))
        files.armed = True
        inbox.claim(10)
        return
    claimed = inbox.claim(10)
    _after_claim(inbox, protocol, files, claimed, folder)


def _after_claim(inbox: Inbox, protocol: str, files: DyingFiles, claimed: list, folder: Path) -> None:
    if protocol == "archive":
        files.armed = True
        inbox.archive_all(claimed)
    elif protocol == "adopt":
        os.link(inbox.folder / "claimed" / claimed[0].name, inbox.folder / "delivered" / claimed[0].name)
        files.armed = True
        inbox.adopt()
    elif protocol in {"quarantine", "requeue"}:
        files.armed = protocol == "quarantine"
        inbox.quarantine(claimed[0].name, "poison")
        files.armed = True
        if protocol == "requeue":
            inbox.requeue(claimed[0].name)
    else:
        inbox.archive_all(claimed)
        files.armed = True
        open_inbox(folder, files, most=1).adopt()


def main() -> None:
    folder, protocol, step, side = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    files = DyingFiles(step, side)
    perform(folder, protocol, files)
    sys.stdout.write(json.dumps(files.steps))


def in_child(folder: Path, protocol: str, step: int, side: str) -> bool:
    """Perform in a fork; True if it died of its step."""
    child = os.fork()
    if child == 0:
        try:
            perform(folder, protocol, DyingFiles(step, side))
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def sweep(root: Path, protocol: str) -> None:
    """Die at every step in turn, each in a folder of its own, until a run outlives its step; print the deaths."""
    deaths = []
    for side in ("before", "after"):
        for step in range(1, 200):
            folder = root / f"{protocol}-{side}-{step}"
            (folder / "agent0").mkdir(parents=True, mode=0o700)
            if not in_child(folder, protocol, step, side):
                break
            deaths.append(folder.name)
    sys.stdout.write(json.dumps(deaths))


if __name__ == "__main__":
    if sys.argv[3] == "sweep":
        sweep(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
