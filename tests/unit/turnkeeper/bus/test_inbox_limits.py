"""Names that rise whatever the clock does; quotas; a machine that has no room."""

import errno
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clock import START, ManualClock
from tests.support.inboxes import message, open_inbox, places, put_all
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.durable_writes import MARK
from turnkeeper.bus.inbox import Inbox, Quota
from turnkeeper.errors import Exhausted
from turnkeeper.storage.files import SystemFiles


class Full(SystemFiles):
    def link(self, source: Path, target: Path) -> None:
        raise Exhausted("cannot be written: no space", where=str(target))


def test_a_full_disk_is_a_typed_error_and_leaves_no_partial_file(folder: Path) -> None:
    with pytest.raises(Exhausted):
        open_inbox(folder, Full()).put(message("one"))
    assert places(folder)["inbox"] == []


def test_names_rise_over_a_clock_that_steps_back_and_over_processes(folder: Path) -> None:
    clock = ManualClock()
    one, other = (Inbox(folder, files=SystemFiles(), clock=clock, entropy=SeededEntropy(seed)) for seed in (1, 2))
    names = []
    for inbox, step in ((one, 0), (other, -3600), (one, -3600), (other, 7200), (one, -86_400)):
        clock.step(step)
        names.append(inbox.put(message(f"m{len(names)}")).name)
    assert names == sorted(names)
    (folder / MARK).unlink()
    names.append(Inbox(folder, files=SystemFiles(), clock=clock, entropy=SeededEntropy(3)).put(message("last")).name)
    assert names == sorted(names), "the names that lie there make good a lost mark"


@pytest.mark.parametrize("mark", [b"", b"x" * 20, b"9" * 20, b"1\n", b"\xff" * 40])
def test_a_damaged_or_forged_mark_does_no_harm(folder: Path, mark: bytes) -> None:
    (folder / MARK).write_bytes(mark)
    first = open_inbox(folder).put(message("one")).name
    assert len(first.split("-")[0]) == 20
    assert first < open_inbox(folder).put(message("two")).name


def test_a_quota_refuses_with_nothing_written_and_work_resumes_when_it_clears(folder: Path) -> None:
    inbox = Inbox(
        folder, files=SystemFiles(), clock=ManualClock(), entropy=SeededEntropy(1), quota=Quota(most_waiting=2)
    )
    answers = inbox.put_each([message(text) for text in ("one", "two", "three")])
    assert [type(answer).__name__ for answer in answers] == ["Put", "Put", "Exhausted"]
    with pytest.raises(Exhausted, match="let the agent catch up"):
        inbox.put(message("three"))
    assert len(places(folder)["inbox"]) == 2
    inbox.claim(1)
    assert inbox.put(message("three")).fresh


def test_a_quota_of_bytes_counts_what_another_process_put(folder: Path) -> None:
    open_inbox(folder).put(replace(message("x"), text="x" * 5000))
    small = Inbox(
        folder, files=SystemFiles(), clock=ManualClock(), entropy=SeededEntropy(2), quota=Quota(most_bytes=6000)
    )
    assert small.put(message("y")).fresh
    with pytest.raises(Exhausted):
        small.put(replace(message("z"), text="z" * 5000))


def test_a_name_that_cannot_be_moved_does_not_hold_up_those_behind_it(folder: Path) -> None:
    class Immovable(SystemFiles):
        def rename(self, source: Path | str, target: Path | str) -> None:
            if Path(source).name.startswith("0000"):
                raise PermissionError(errno.EPERM, "Operation not permitted")
            super().rename(source, target)

    inbox = open_inbox(folder, Immovable())
    (folder / "inbox" / "0000-stuck.json").write_bytes(b"{")
    inbox.put(message("good"))
    assert [item.envelope.text for item in inbox.claim(1)] == ["good"]
    with pytest.raises(Exhausted):
        inbox.claim(1)


def test_a_name_tells_when_by_which_process_and_by_whom_it_was_put_and_in_which_order(folder: Path) -> None:
    inbox = open_inbox(folder)
    names = [put.name for put in put_all(inbox, [message("one"), message("two")])]
    ns = int(START.timestamp()) * 10**9
    for place, name in enumerate(names):
        assert re.fullmatch(rf"{ns + place:020d}-{os.getpid()}-[0-9a-f]{{8}}-{place + 1:06d}-author\.json", name)
