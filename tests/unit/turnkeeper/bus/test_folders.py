"""Where an envelope has got to, as whoever put it sees it: never further than it is."""

import os
from pathlib import Path

import pytest

from tests.support.clock import ManualClock
from tests.support.inboxes import message
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus import folders
from turnkeeper.bus.folders import Capacity, EnvelopeState, Quota, envelope_states
from turnkeeper.bus.inbox import Inbox
from turnkeeper.errors import Exhausted
from turnkeeper.storage.files import SystemFiles


def test_an_envelope_is_seen_on_its_way_from_waiting_to_delivered_and_gone(folder: Path) -> None:
    inbox = Inbox(folder, files=SystemFiles(), clock=ManualClock(), entropy=SeededEntropy(1), settles_keys=True)
    name = inbox.put(message("one", key="k")).name

    def seen(wanted: str = name) -> EnvelopeState:
        return envelope_states(folder, {"k": wanted}, SystemFiles())["k"]

    assert seen() is EnvelopeState.WAITING
    (item,) = inbox.claim(1)
    assert seen() is EnvelopeState.CLAIMED
    assert seen("another name of it") is EnvelopeState.CLAIMED, "the key tells, whatever a reader had to call it"
    inbox.archive(item)
    assert seen() is EnvelopeState.DELIVERED
    assert seen("another name of it") is EnvelopeState.DELIVERED
    for path in (folder / "delivered").iterdir():
        path.unlink()
    assert seen() is EnvelopeState.GONE


def test_one_that_was_set_aside_or_never_claimed_with_its_key_is_told_apart(folder: Path) -> None:
    inbox = Inbox(folder, files=SystemFiles(), clock=ManualClock(), entropy=SeededEntropy(1), settles_keys=True)
    names = {key: inbox.put(message(key, key=key)).name for key in ("torn", "withdrawn")}
    (folder / "inbox" / names["torn"]).write_bytes(b"{")
    assert inbox.withdraw(names["withdrawn"])
    assert not inbox.withdraw(names["withdrawn"]), "it is archived already"
    assert inbox.claim(10) == []
    assert envelope_states(folder, names, SystemFiles()) == {
        "torn": EnvelopeState.QUARANTINED,
        "withdrawn": EnvelopeState.DELIVERED,
    }


def put_until_refused(place: Path, quota: Quota, writers: int, size_bytes: int) -> int:
    """Let writers put in turns, 100 files each, until all are refused; return how many files there are."""
    capacities = {number: Capacity(place, quota) for number in range(writers)}
    while capacities:
        for number, capacity in list(capacities.items()):
            for _ in range(100):
                try:
                    capacity.reserve(size_bytes)
                except Exhausted:
                    del capacities[number]
                    break
                (place / f"{len(os.listdir(place)):06d}").write_bytes(b"x" * size_bytes)
            capacity.settle()
    return len(os.listdir(place))


@pytest.mark.parametrize("quota", [Quota(most_waiting=300), Quota(most_bytes=3000)])
def test_eight_writers_pass_a_quota_by_what_each_may_put_between_two_counts(
    quota: Quota, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_COUNT_AGAIN", 3)
    folder.mkdir(exist_ok=True)
    assert 300 <= put_until_refused(folder, quota, 8, 10) <= 300 + 8 * 3


def test_files_are_counted_rarely_while_there_is_much_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    capacity, counts = Capacity(folder, Quota()), []
    monkeypatch.setattr(capacity, "_count", lambda count=capacity._count: (counts.append(None), count()))
    for _ in range(50_000):
        capacity.reserve(2000)
        capacity.settle()
    assert len(counts) <= 5
