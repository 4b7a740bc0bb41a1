"""Real writers and readers of one inbox, killed at random, and a checker of what they left.

Run as `python -m tests.integration.bus.chaos FOLDER SECONDS WRITERS READERS [BROKEN]`; prints its findings as JSON.
BROKEN takes away one guard of the bus, to prove that the checker sees it.
"""

import hashlib
import json
import os
import select
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from turnkeeper.bus.durable_writes import GroupingFiles, writer_of
from turnkeeper.bus.envelope import Envelope, decode, encode
from turnkeeper.bus.inbox import FOLDERS, Inbox, Retention
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import TurnkeeperError

SHARED_KEYS = 400


class TornFiles(GroupingFiles):
    """Writes under the final name, piece by piece."""

    def write_group(self, items):
        return [self.write_synced(path, data) for path, data in items]

    def write_synced(self, path: Path | str, data: bytes) -> None:
        path = Path(path)
        if not path.name.endswith(".tmp"):
            super().write_synced(path, data)
            return
        final = path.with_name(path.name[1:-4])
        final.write_bytes(data[: len(data) // 2])
        with final.open("ab") as file:
            file.write(data[len(data) // 2 :])

    def link(self, source: Path | str, target: Path | str) -> None:
        if Path(source).exists():
            super().link(source, target)


class LosingFiles(GroupingFiles):
    """Archives by removing first, and forgets the link now and then."""

    def link(self, source: Path | str, target: Path | str) -> None:
        if Path(target).name.endswith("0-author.json") and Path(target).parent.name == "inbox":
            return
        super().link(source, target)


FILES = {"torn": TornFiles, "lost": LosingFiles}


def open_inbox(folder: Path, broken: str) -> Inbox:
    files = FILES.get(broken, GroupingFiles)()
    keys = broken != "keys"
    retention = Retention(most=10**9)  # nothing is pruned from under the checker
    clock, entropy = SystemClock(), SystemEntropy()
    return Inbox(folder, files=files, clock=clock, entropy=entropy, settles_keys=keys, retention=retention)


class Trail:
    """What one process says of itself: lines that outlive its death, of which a kill may cut the last."""

    def __init__(self, folder: Path, role: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(folder / f"{role}-{os.getpid()}.jsonl", flags, 0o600)

    def say(self, **facts: object) -> None:
        os.write(self._descriptor, json.dumps(facts).encode() + b"\n")


def read_trails(folder: Path, role: str) -> list[dict]:
    """Return what was said. A line without its end was cut by a kill, as a write to two pages may be: it was not said."""
    lines = [line for path in folder.glob(f"{role}-*.jsonl") for line in path.read_text().split("\n")[:-1]]
    return [json.loads(line) for line in lines]


def write_for_ever(folder: Path, broken: str, progress: int) -> None:
    inbox, trail, entropy = open_inbox(folder / "agent0", broken), Trail(folder, "sent"), SystemEntropy()
    while True:
        group = []
        for _ in range(int(entropy.hex(1), 16) % 3 + 1):
            key = f"k{int(entropy.hex(6), 16) % SHARED_KEYS}" if entropy.uniform(0, 1) < 0.3 else ""
            text = entropy.hex(8) * (int(entropy.hex(2), 16) + 1)
            group.append(message(f"m-{entropy.hex(16)}", text, key))
        for item in group:
            trail.say(intent=item.id, sha=hashlib.sha256(encode(item)).hexdigest(), key=item.idempotency_key)
        for item, answer in zip(group, inbox.put_each(group), strict=True):
            if isinstance(answer, TurnkeeperError):
                raise answer
            trail.say(ok=item.id, fresh=answer.fresh, key=item.idempotency_key)
        os.write(progress, b"w")


def read_for_ever(folder: Path, broken: str, progress: int) -> None:
    inbox, trail = open_inbox(folder / "agent0", broken), Trail(folder, "read")
    while True:
        claimed = inbox.claim(5)
        for item in claimed:
            trail.say(handed=item.envelope.id, name=item.name, key=item.envelope.idempotency_key)
        inbox.archive_all(claimed)
        os.write(progress, b"r")


def message(name: str, text: str, key: str) -> Envelope:
    at = SystemClock().now()
    return Envelope(id=name, sender="author", to="agent0", kind="message", text=text, at=at, idempotency_key=key)


def run(folder: Path, seconds: float, writers: int, readers: int, broken: str) -> dict:
    clock, entropy = SystemClock(), SystemEntropy()
    told, tell = os.pipe()
    roles = [write_for_ever] * writers + [read_for_ever] * readers
    children = {start(role, folder, broken, tell): role for role in roles}
    kills, until = 0, clock.monotonic() + seconds
    while (left := until - clock.monotonic()) > 0:
        ready, _, _ = select.select([told], [], [], min(left, 0.5))
        if ready:
            os.read(told, int(entropy.hex(2), 16) % 64 + 1)  # the next death comes after that much progress
        if entropy.uniform(0, 1) < 0.4:
            victim = list(children)[int(entropy.hex(4), 16) % len(children)]
            kills += kill(victim)
            role = children.pop(victim)
            children[start(role, folder, broken, tell)] = role
    for child in children:
        kill(child)
    return {"kills": kills, **check(folder, broken)}


def start(role: Callable, folder: Path, broken: str, progress: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            role(folder, broken, progress)
        finally:
            os._exit(3)
    return child


def kill(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        raise SystemExit(f"a child ended by itself: {os.WEXITSTATUS(status)}")
    return 1


def check(folder: Path, broken: str) -> dict:
    """Drain as the next process would, then hold what lies there against what the processes said."""
    agent, trail = folder / "agent0", Trail(folder, "read")
    inbox = open_inbox(agent, broken)
    batch = inbox.adopt()
    while batch:
        for item in batch:
            trail.say(handed=item.envelope.id, name=item.name, key=item.envelope.idempotency_key)
        inbox.archive_all(batch)
        batch = inbox.claim(500)
    sent = {line["intent"]: line for line in read_trails(folder, "sent") if "intent" in line}
    answered = [line for line in read_trails(folder, "sent") if "ok" in line]
    found, keys_there, wrong = look(agent, sent)
    for line in answered:
        if line["fresh"] and found[line["ok"]] != 1:
            wrong.append(f"{line['ok']} was answered for and lies in {found[line['ok']]} places")
        if not line["fresh"] and line["key"] not in keys_there:
            wrong.append(f"{line['key']} was called a duplicate of nothing")
    owners = owners_of_keys(folder)
    wrong += [f"{key} took effect {len(names)} times" for key, names in owners.items() if len(names) > 1]
    wrong += [f"{key} never took effect" for key in keys_there - owners.keys()]
    return {"answered": len(answered), "delivered": sum(found.values()), "keys": len(owners), "wrong": wrong[:20]}


def look(agent: Path, sent: dict[str, dict]) -> tuple[Counter, set[str], list[str]]:
    """Return how often each envelope lies there, the keys that do, and what is wrong with the files."""
    found, keys = Counter(), set()
    wrong = [
        f"{place} holds {path.name}"
        for place in FOLDERS
        for path in (agent / place).iterdir()
        if place != "delivered" and (not path.name.startswith(".") or writer_of(path.name) is not None)
    ]
    for path in (agent / "delivered").glob("[!.]*"):
        data = path.read_bytes()
        envelope = decode(data)
        found[envelope.id] += 1
        keys.add(envelope.idempotency_key)
        if sent.get(envelope.id, {}).get("sha") != hashlib.sha256(data).hexdigest():
            wrong.append(f"{envelope.id} is not what was sent")
    wrong += [f"{name} lies there {count} times" for name, count in found.items() if count > 1]
    return found, keys - {""}, wrong


def owners_of_keys(folder: Path) -> dict[str, set[str]]:
    owners = defaultdict(set)
    for line in read_trails(folder, "read"):
        owners[line["key"]].add(line["name"])
    owners.pop("", None)
    return owners


def main() -> None:
    folder, seconds, writers, readers = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    (folder / "agent0").mkdir(mode=0o700)
    sys.stdout.write(json.dumps(run(folder, seconds, writers, readers, "".join(sys.argv[5:6]))))


if __name__ == "__main__":
    main()
