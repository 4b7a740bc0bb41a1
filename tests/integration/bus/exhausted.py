"""A sender on a machine without room: puts until it is refused, then makes room and puts again.

Run as `python -m tests.integration.bus.exhausted FOLDER disk|descriptors|read-only`; prints what it met as JSON.
"""

import json
import os
import resource
import sys
from pathlib import Path

from tests.integration.bus.killpoints import message
from tests.support.inboxes import put_all
from turnkeeper.bus.durable_writes import GroupingFiles
from turnkeeper.bus.inbox import Inbox, Put
from turnkeeper.clock import SystemClock
from turnkeeper.entropy import SystemEntropy
from turnkeeper.errors import Exhausted

NOBODY = 65534
PUTS = 400


def visible(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder / "inbox") if not name.startswith("."))


def fill(inbox: Inbox, *, group: int) -> tuple[list[str], list[str]]:
    """Put until the first refusal; return the names answered for and the errors."""
    names: list[str] = []
    for place in range(0, PUTS, group):
        answers = inbox.put_each([message(f"m{place + n}", "") for n in range(group)])
        names += [answer.name for answer in answers if isinstance(answer, Put)]
        errors = [answer for answer in answers if not isinstance(answer, Put)]
        if errors:
            return names, [type(error).__name__ for error in errors]
    return names, []


def starve_of_disk(folder: Path, inbox: Inbox) -> dict:
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * (400 << 10))
    names, errors = fill(inbox, group=7)
    there = visible(folder)
    ballast.unlink()
    return {"answered": names, "errors": errors, "there": there}


def starve_of_descriptors(folder: Path, inbox: Inbox) -> dict:
    names = [inbox.put(message("first")).name]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[0] + 1, limit[1]))
    errors = []
    for attempt in (lambda: inbox.put(message("second")), lambda: inbox.claim(1)):
        try:
            attempt()
        except Exhausted as error:
            errors.append(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    there = visible(folder)
    return {"answered": names, "errors": errors, "there": there}


def starve_of_rights(folder: Path, inbox: Inbox) -> dict:
    names = [inbox.put(message("first")).name]
    (folder / "inbox").chmod(0o500)
    errors = []
    for attempt in (
        lambda: inbox.put(message("second")),
        lambda: put_all(inbox, [message("a")] * 5),
        lambda: inbox.claim(1),
    ):
        try:
            attempt()
        except Exhausted as error:
            errors.append(type(error).__name__)
    there = visible(folder)
    (folder / "inbox").chmod(0o700)
    return {"answered": names, "errors": errors, "there": there}


KINDS = {"disk": starve_of_disk, "descriptors": starve_of_descriptors, "read-only": starve_of_rights}


def main() -> None:
    folder, kind = Path(sys.argv[1]) / "agent0", sys.argv[2]
    if kind == "read-only" and os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    folder.mkdir(mode=0o700)
    inbox = Inbox(folder, files=GroupingFiles(), clock=SystemClock(), entropy=SystemEntropy())
    found = KINDS[kind](folder, inbox)
    after = inbox.put(message("after")).name
    claimed = [item.name for item in inbox.claim(PUTS + 10)]
    hidden = [name for name in os.listdir(folder / "inbox") if name.startswith(".")]
    quarantined = [item.name for item in inbox.quarantined()]
    sys.stdout.write(
        json.dumps({**found, "after": after, "claimed": claimed, "hidden": hidden, "quarantined": quarantined})
    )


if __name__ == "__main__":
    main()
