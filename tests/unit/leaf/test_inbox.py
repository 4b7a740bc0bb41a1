"""The inbox: an envelope is in exactly one place, its key takes effect once, and a crash loses nothing."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.clock import START, ManualClock
from turnkeeper.bus.envelope import LARGEST_BYTES, Envelope, decode, encode
from turnkeeper.bus.inbox import FOLDERS, Inbox, Quota, Retention
from turnkeeper.bus.names import MARK
from turnkeeper.entropy import SeededEntropy
from turnkeeper.errors import Corrupt, Exhausted, InvalidInput, NotFound
from turnkeeper.files import SystemFiles


def open_inbox(folder: Path, files: SystemFiles | None = None) -> Inbox:
    return Inbox(folder, files=files or SystemFiles(), clock=ManualClock(), entropy=SeededEntropy(1))


def message(text: str, key: str = "") -> Envelope:
    return Envelope(id=text, sender="author", to="agent0", kind="message", text=text, at=START, idempotency_key=key)


def places(folder: Path) -> dict[str, list[str]]:
    return {name: sorted(path.name for path in (folder / name).iterdir()) for name in FOLDERS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent0").mkdir(mode=0o700)
    return tmp_path / "agent0"


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


def test_a_key_takes_effect_once_also_after_a_restart(folder: Path) -> None:
    first = open_inbox(folder).put(message("one", key="fire#1"))
    again = open_inbox(folder)
    assert again.put(message("one", key="fire#1")) == replace(first, fresh=False)
    assert [item.envelope.text for item in again.claim(10)] == ["one"]
    assert not again.put(message("one", key="fire#1")).fresh, "claimed is still known"


def test_two_with_one_key_in_one_group_are_one(folder: Path) -> None:
    inbox = open_inbox(folder)
    puts = inbox.put_all([message("one", key="k"), message("one", key="k"), message("two", key="l")])
    assert [put.fresh for put in puts] == [True, False, True]
    assert inbox.waiting() == 2


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


@pytest.mark.parametrize("make", ["torn", "folder", "link", "foreign"])
def test_what_is_malformed_goes_to_quarantine_whole_and_the_rest_is_delivered(folder: Path, make: str) -> None:
    inbox = open_inbox(folder)
    bad = folder / "inbox" / "00000000000000000000-bad.json"
    if make == "torn":
        bad.write_bytes(b'{"v":1')
    elif make == "folder":
        bad.mkdir()
    elif make == "link":
        bad.symlink_to("/etc/hostname")
    else:
        bad.write_bytes(b'{"v":9}')
    inbox.put(message("good"))
    assert [item.envelope.text for item in inbox.claim(10)] == ["good"]
    assert places(folder)["quarantine"] == [bad.name, f"{bad.name}.reason"]


def test_a_malformed_envelope_writes_nothing(folder: Path) -> None:
    inbox = open_inbox(folder)
    with pytest.raises(InvalidInput):
        inbox.put_all([message("good"), message("<channel>")])
    assert places(folder)["inbox"] == []


class Full(SystemFiles):
    def link(self, source: Path, target: Path) -> None:
        raise Exhausted("cannot be written: no space", where=str(target))


def test_a_full_disk_is_a_typed_error_and_leaves_no_partial_file(folder: Path) -> None:
    with pytest.raises(Exhausted):
        open_inbox(folder, Full()).put(message("one"))
    assert places(folder)["inbox"] == []


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
    open_inbox(folder, files).put_all([message("one"), message("two")])
    assert files.steps == ["write and sync file"] * 2 + ["link"] * 2 + ["sync folder"]


def claim_all(inbox: Inbox) -> list[str]:
    return [item.envelope.text for item in inbox.claim(100)]


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


def test_one_bad_envelope_in_a_group_is_refused_alone_where_each_is_answered(folder: Path) -> None:
    answers = open_inbox(folder).put_each([message("one"), message("<channel>"), message("two")])
    assert [type(answer).__name__ for answer in answers] == ["Put", "InvalidInput", "Put"]
    assert claim_all(open_inbox(folder)) == ["one", "two"]


def test_a_pipe_in_an_inbox_is_quarantined_without_waiting_on_it(folder: Path) -> None:
    inbox = open_inbox(folder)
    os.mkfifo(folder / "inbox" / "pipe.json")
    assert claim_all(inbox) == []
    assert places(folder)["quarantine"] == ["pipe.json", "pipe.json.reason"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("oversize.json", b" " * (LARGEST_BYTES + 1)),
        ("n" * 250 + ".json", b"{"),
        (os.fsdecode(b"\xff\xfe.json"), b"{"),
        ("a\nb", b"{"),
        ("x.reason", b"{"),
    ],
    ids=["oversize", "long name", "no text", "line break", "named as a reason"],
)
def test_whatever_lies_in_an_inbox_is_set_aside_whole_and_listed(folder: Path, name: str, data: bytes) -> None:
    inbox = open_inbox(folder)
    (folder / "inbox" / name).write_bytes(data)
    inbox.put(message("good"))
    assert claim_all(inbox) == ["good"]
    (item,) = inbox.quarantined()
    assert item.reason
    assert item.at == START
    assert (folder / "quarantine" / item.name).read_bytes() == data


def test_a_foreign_writer_that_uses_a_name_again_overwrites_nothing(folder: Path) -> None:
    inbox = open_inbox(folder)
    for text in ("one", "two", "three"):
        (folder / "inbox" / "same.json").write_bytes(encode(message(text)))
        (item,) = inbox.claim(1)
        assert item.envelope.text == text
        if text != "one":
            inbox.archive(item)
    for item in inbox.adopt():
        inbox.archive(item)
    kept = {decode((folder / "delivered" / name).read_bytes()).text for name in places(folder)["delivered"]}
    assert kept == {"one", "two", "three"}
    for _ in range(3):
        (folder / "inbox" / "bad.json").write_bytes(b"{")
        inbox.claim(1)
    assert len(inbox.quarantined()) == 3


def test_a_requeued_envelope_is_checked_again_and_keeps_its_bytes(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one"))
    (item,) = inbox.claim(1)
    sent = (folder / "claimed" / item.name).read_bytes()
    inbox.quarantine(item.name, "failed five times")
    assert [aside.reason for aside in inbox.quarantined()] == ["failed five times"]
    assert inbox.requeue(item.name).name == item.name
    assert inbox.quarantined() == []
    (again,) = inbox.claim(1)
    assert (folder / "claimed" / again.name).read_bytes() == sent


def test_what_is_still_malformed_stays_in_quarantine(folder: Path) -> None:
    inbox = open_inbox(folder)
    (folder / "inbox" / "bad.json").write_bytes(b"{")
    inbox.claim(1)
    with pytest.raises(InvalidInput):
        inbox.requeue("bad.json")
    for name in ("absent.json", "../inbox/x", ".hidden", ""):
        with pytest.raises(NotFound):
            inbox.requeue(name)
    assert places(folder)["quarantine"] == ["bad.json", "bad.json.reason"]


def test_a_key_quarantined_here_may_be_put_again(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one", key="k"))
    (item,) = inbox.claim(1)
    inbox.quarantine(item.name, "poison")
    assert inbox.known("k") is None
    assert inbox.put(message("one", key="k")).fresh


def keeping(folder: Path, clock: ManualClock, **bounds: int) -> Inbox:
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


def test_a_lack_of_descriptors_at_a_claim_quarantines_nothing_and_loses_nothing(folder: Path) -> None:
    class Starved(SystemFiles):
        starved = True

        def read(self, path: Path, largest: int) -> bytes:
            if self.starved:
                raise Corrupt("cannot be opened", where=str(path)) from OSError(errno.EMFILE, "Too many open files")
            return super().read(path, largest)

    files = Starved()
    inbox = open_inbox(folder, files)
    open_inbox(folder).put_all([message("one"), message("two")])
    for _ in range(2):
        with pytest.raises(Exhausted):
            inbox.claim(10)
    files.starved = False
    assert claim_all(inbox) == ["one", "two"]
    assert places(folder)["quarantine"] == []


def test_a_name_that_cannot_be_moved_does_not_hold_up_those_behind_it(folder: Path) -> None:
    class Immovable(SystemFiles):
        def rename(self, source: Path, target: Path) -> None:
            if source.name.startswith("0000"):
                raise PermissionError(errno.EPERM, "Operation not permitted")
            super().rename(source, target)

    inbox = open_inbox(folder, Immovable())
    (folder / "inbox" / "0000-stuck.json").write_bytes(b"{")
    inbox.put(message("good"))
    assert [item.envelope.text for item in inbox.claim(1)] == ["good"]
    with pytest.raises(Exhausted):
        inbox.claim(1)


def test_an_archived_envelope_that_a_crash_left_in_claimed_is_not_handed_out_again(folder: Path) -> None:
    inbox = open_inbox(folder)
    inbox.put(message("one"))
    (item,) = inbox.claim(1)
    os.link(folder / "claimed" / item.name, folder / "delivered" / item.name)
    assert open_inbox(folder).adopt() == []
    assert places(folder)["claimed"] == []


def test_the_archive_is_synced_before_the_claimed_name_goes(folder: Path) -> None:
    class Order(Recorder):
        def unlink(self, path: Path) -> None:
            self.steps.append(f"unlink from {path.parent.name}")
            super().unlink(path)

    files = Order()
    inbox = open_inbox(folder, files)
    inbox.put_all([message("one"), message("two")])
    claimed = inbox.claim(2)
    files.steps.clear()
    inbox.archive_all(claimed)
    assert files.steps == ["link", "link", "sync folder", "unlink from claimed", "unlink from claimed"]
