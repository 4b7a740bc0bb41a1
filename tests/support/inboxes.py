"""Opening an inbox in a test, and inspecting its folders."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.clock import START, ManualClock
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.envelope import Envelope
from turnkeeper.bus.inbox import FOLDERS, Inbox, Put
from turnkeeper.errors import TurnkeeperError
from turnkeeper.storage.files import SystemFiles


def open_inbox(folder: Path, files: SystemFiles | None = None) -> Inbox:
    return Inbox(folder, files=files or SystemFiles(), clock=ManualClock(), entropy=SeededEntropy(1))


def message(text: str, key: str = "") -> Envelope:
    return Envelope(
        id=ascii(text).replace(" ", "_"),
        sender="author",
        to="agent0",
        kind="message",
        text=text,
        at=START,
        idempotency_key=key,
    )


def places(folder: Path) -> dict[str, list[str]]:
    return {name: sorted(path.name for path in (folder / name).iterdir()) for name in FOLDERS}


def claim_all(inbox: Inbox) -> list[str]:
    return [item.envelope.text for item in inbox.claim(100)]


def put_all(inbox: Inbox, envelopes: Sequence[Envelope]) -> list[Put]:
    """Put envelopes as one group. Raise the error of the first refused envelope."""
    answers = inbox.put_each(envelopes)
    for answer in answers:
        if isinstance(answer, TurnkeeperError):
            raise answer
    return [answer for answer in answers if isinstance(answer, Put)]
