"""The inbox: an envelope is in exactly one place, in order, and a crash loses nothing."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.inboxes import message, open_inbox, places, put_all
from turnkeeper.errors import Exhausted
from turnkeeper.storage.files import SystemFiles


def test_envelopes_are_claimed_in_the_order_they_were_put_and_archived(folder: Path) -> None:
    inbox = open_inbox(folder)
    for text in ("one", "two", "three"):
        assert inbox.put(message(text)).fresh
    claimed = inbox.claim(2)
    assert [item.envelope.text for item in claimed] == ["one", "two"]
    for item in claimed:
        inbox.archive(item)
        inbox.archive(item)
    found = places(folder)
    assert (len(found["inbox"]), len(found["claimed"]), len(found["delivered"])) == (1, 0, 2)


def test_what_a_crash_left_in_claimed_is_adopted(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one"))
    inbox.claim(1)
    adopted = open_inbox(folder).adopt()
    assert [item.envelope.text for item in adopted] == ["one"]


def test_a_crash_between_link_and_unlink_of_an_archive_leaves_no_second_copy(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one"))
    (item,) = inbox.claim(1)
    os.link(folder / "claimed" / item.name, folder / "delivered" / item.name)
    inbox.archive(item)
    assert places(folder)["claimed"] == []
    assert len(places(folder)["delivered"]) == 1


class Recorder(SystemFiles):
    def __init__(self) -> None:
        self.steps: list[str] = []

    def write_synced(self, path: Path, data: bytes) -> None:
        self.steps.append("write and sync file")
        super().write_synced(path, data)

    def link(self, source: Path, target: Path) -> None:
        self.steps.append("link")
        super().link(source, target)

    def sync_folder(self, folder: Path) -> None:
        self.steps.append("sync folder")
        super().sync_folder(folder)


def test_the_file_is_synced_before_the_link_and_the_folder_before_the_answer(folder: Path) -> None:
    files = Recorder()
    put_all(open_inbox(folder, files), [message("one"), message("two")])
    assert files.steps == ["write and sync file"] * 2 + ["link"] * 2 + ["sync folder"]


def test_a_put_whose_folder_sync_failed_is_not_there_and_may_be_put_again(folder: Path) -> None:
    class FailingSync(SystemFiles):
        fails = True

        def sync_folder(self, folder: Path) -> None:
            if self.fails:
                raise OSError(errno.EIO, "Input/output error")
            super().sync_folder(folder)

    files = FailingSync()
    inbox = open_inbox(folder, files)
    with pytest.raises(Exhausted, match="Input/output error"):
        inbox.put(message("one", key="k"))
    assert places(folder)["inbox"] == []
    files.fails = False
    assert inbox.put(message("one", key="k")).fresh


def test_an_archived_envelope_that_a_crash_left_in_claimed_is_not_handed_out_again(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one"))
    (item,) = inbox.claim(1)
    os.link(folder / "claimed" / item.name, folder / "delivered" / item.name)
    assert open_inbox(folder).adopt() == []
    assert places(folder)["claimed"] == []


def test_the_archive_is_synced_before_the_claimed_name_goes(folder: Path) -> None:
    class Order(Recorder):
        def unlink(self, path: Path | str) -> None:
            self.steps.append(f"unlink from {Path(path).parent.name}")
            super().unlink(path)

    files = Order()
    inbox = open_inbox(folder, files)
    put_all(inbox, [message("one"), message("two")])
    claimed = inbox.claim(2)
    files.steps.clear()
    inbox.archive_all(claimed)
    assert files.steps == ["link", "link", "sync folder", "unlink from claimed", "unlink from claimed"]
