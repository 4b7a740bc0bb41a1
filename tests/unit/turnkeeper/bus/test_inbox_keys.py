"""Idempotency keys take effect once, and end with their envelopes when those are pruned."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import START, ManualClock
from tests.support.inboxes import claim_all, message, open_inbox, places, put_all
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.envelope import decode
from turnkeeper.bus.inbox import Inbox, Retention
from turnkeeper.storage.files import SystemFiles


def test_a_key_takes_effect_once_also_after_a_restart(folder: Path) -> None:
    first = open_inbox(folder).put(message("one", key="fire#1"))
    again = open_inbox(folder)
    assert again.put(message("one", key="fire#1")) == replace(first, fresh=False)
    assert [item.envelope.text for item in again.claim(10)] == ["one"]
    assert not again.put(message("one", key="fire#1")).fresh, "claimed is still known"


def test_two_with_one_key_in_one_group_are_one(folder: Path) -> None:
    inbox = open_inbox(folder)
    puts = put_all(inbox, [message("one", key="k"), message("one", key="k"), message("two", key="l")])
    assert [put.fresh for put in puts] == [True, False, True]
    assert inbox.waiting() == 2


def test_a_key_quarantined_here_may_be_put_again(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one", key="k"))
    (item,) = inbox.claim(1)
    inbox.quarantine(item.name, "poison")
    assert inbox.known("k") is None
    assert inbox.put(message("one", key="k")).fresh


def keeping(folder: Path, clock: ManualClock, **bounds: Any) -> Inbox:
    return Inbox(
        folder,
        files=SystemFiles(),
        clock=clock,
        entropy=SeededEntropy(1),
        retention=Retention(**bounds),
        settles_keys=True,
    )


@pytest.mark.parametrize(("bounds", "left"), [({"most": 2}, ["m3", "m4"]), ({"keep_s": 250}, ["m2", "m3", "m4"])])
def test_delivered_envelopes_are_pruned_by_count_and_by_age_with_their_keys(
    folder: Path, bounds: dict[str, int], left: list[str]
) -> None:
    clock = ManualClock()
    inbox = keeping(folder, clock, **bounds)
    for place in range(5):
        inbox.put(message(f"m{place}", key=f"k{place}"))
        inbox.archive(inbox.claim(1)[0])
        clock.advance(100)
    (folder / "quarantine" / "poison.json").write_bytes(b"{")
    clock.step(-50)
    keeping(folder, clock, **bounds).adopt()
    found = places(folder)["delivered"]
    kept = [name for name in found if not name.startswith(".")]
    assert [decode((folder / "delivered" / name).read_bytes()).text for name in kept] == left
    assert len(found) == 2 * len(kept), "one key link for each that is kept"
    assert "poison.json" in places(folder)["quarantine"]


def test_a_clock_that_stepped_forward_removes_no_delivered_envelope_until_it_is_believed(folder: Path) -> None:
    clock, seen, months = ManualClock(), folder / "time.json", 210 * 86_400
    at, bounds = clock.now().timestamp(), {"keep_s": 14 * 86_400, "seen": seen}
    inbox = keeping(folder, clock, **bounds)
    inbox.put(message("m", key="k"))
    inbox.archive(inbox.claim(1)[0])
    clock.advance(months)
    for told in ({"at": at, "before": None}, {"at": at + months, "before": at}):
        seen.write_text(json.dumps(told))
        keeping(folder, clock, **bounds).adopt()
        assert len(places(folder)["delivered"]) == 2, "the envelope, and its key"
    seen.write_text(json.dumps({"at": at + months, "before": None}))
    keeping(folder, clock, **bounds).adopt()
    assert places(folder)["delivered"] == []


def test_temporary_files_of_dead_writers_are_swept_and_those_of_living_ones_are_not(folder: Path) -> None:
    clock = ManualClock()
    inbox = Inbox(folder, files=SystemFiles(), clock=clock, entropy=SeededEntropy(1))
    ns = int(START.timestamp()) * 10**9
    dead = f".{ns:020d}-{2**22 + 1}-0a1b2c3d-000001-author.json.tmp"
    living = f".{ns:020d}-{os.getpid()}-0a1b2c3d-000001-author.json.tmp"
    for name in (dead, living, ".foreign"):
        (folder / "inbox" / name).write_bytes(b"{")
    inbox.adopt()
    assert places(folder)["inbox"] == sorted([living, ".foreign"])
    clock.advance(2 * 86_400)
    inbox.adopt()
    assert places(folder)["inbox"] == [".foreign"], "its pid may be another process by now"


def test_the_second_envelope_with_a_delivered_key_is_dropped_at_claim(folder: Path) -> None:
    clock = ManualClock()
    one, other = (
        Inbox(folder, files=SystemFiles(), clock=clock, entropy=SeededEntropy(seed), settles_keys=True)
        for seed in (1, 2)
    )
    assert one.known("k") is other.known("k") is None
    assert one.put(message("one", key="k")).fresh
    assert other.put(message("one", key="k")).fresh, "the hint of a process knows its own puts alone"
    assert claim_all(one) == ["one"], "one effect"
    (left,) = one.adopt()
    one.archive(left)
    assert not other.put(message("one", key="k")).fresh
    found = places(folder)
    assert (len(found["inbox"]), len(found["claimed"])) == (0, 0)


def test_an_envelope_that_owns_its_key_is_adopted_after_a_crash(folder: Path) -> None:
    keeping(folder, ManualClock()).put(message("one", key="k"))
    assert claim_all(keeping(folder, ManualClock())) == ["one"]
    assert [item.envelope.text for item in keeping(folder, ManualClock()).adopt()] == ["one"]


def test_key_links_are_made_again_after_a_restore_that_copied_files(folder: Path, tmp_path: Path) -> None:
    inbox = keeping(folder, ManualClock())
    for key in ("done", "claimed"):
        inbox.put(message(key, key=key))
    inbox.archive(inbox.claim(1)[0])
    assert claim_all(inbox) == ["claimed"]
    restored = tmp_path / "restored"
    shutil.copytree(folder, restored)
    again = keeping(restored, ManualClock())
    assert [item.envelope.text for item in again.adopt()] == ["claimed"]
    assert [again.put(message(key, key=key)).fresh for key in ("done", "claimed")] == [False, False]
    for link in (restored / "delivered").glob(".key-*"):
        link.unlink()
    rebuilt = keeping(restored, ManualClock())
    assert [item.envelope.text for item in rebuilt.adopt()] == ["claimed"]
    assert not rebuilt.put(message("done", key="done")).fresh
