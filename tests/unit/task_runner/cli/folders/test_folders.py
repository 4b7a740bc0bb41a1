"""Which files of a watched folder count, and that nobody leads the watch to another place."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from task_runner.cli.folders.folders import (
    FILE,
    MOST_FILES,
    Known,
    Stamp,
    Watched,
    begin,
    digest_of,
    event_of,
    forget,
    keep_seen,
    read_seen,
    scan,
    write_seen,
)
from turnkeeper.config.home import Home
from turnkeeper.errors import Conflict


def watched(folder: Path) -> Watched:
    return Watched(path=str(folder), event="folder.scans")


def test_only_regular_files_count_and_no_link_is_followed(tmp_path: Path) -> None:
    folder, other = tmp_path / "scans", tmp_path / "other"
    (folder / "inner").mkdir(parents=True)
    other.mkdir()
    (other / "secret").write_text("s")
    (folder / "a.pdf").write_text("a")
    (folder / "inner" / "b.pdf").write_text("b")
    (folder / ".hidden").write_text("h")
    (folder / "link").symlink_to(other / "secret")
    (folder / "folder-link").symlink_to(other)
    os.mkfifo(folder / "pipe")
    found, problem = scan(watched(folder))
    assert (sorted(found), problem) == (["a.pdf", "inner/b.pdf"], "")


def test_a_folder_that_is_a_link_or_gone_is_a_problem_and_no_deletion(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for path in (tmp_path / "link", tmp_path / "none"):
        found, problem = scan(watched(path))
        assert found == {}
        assert problem.startswith("the folder cannot be read: ")


@pytest.mark.parametrize("swapped", ["file", "folder", "pipe"])
def test_a_file_that_became_something_else_is_not_read(tmp_path: Path, swapped: str) -> None:
    folder, other = tmp_path / "scans", tmp_path / "other"
    (folder / "inner").mkdir(parents=True)
    other.mkdir()
    (folder / "inner" / "a.pdf").write_text("same")
    os.link(folder / "inner" / "a.pdf", other / "a.pdf")  # the same file, so only the way to it tells
    stamp = scan(watched(folder))[0]["inner/a.pdf"]
    if swapped == "folder":
        (folder / "inner").rename(folder / "was")
        (folder / "inner").symlink_to(other)
    else:
        (folder / "inner" / "a.pdf").unlink()
        if swapped == "file":
            (folder / "inner" / "a.pdf").symlink_to(other / "a.pdf")
        else:
            os.mkfifo(folder / "inner" / "a.pdf")
    with suppress(OSError):
        assert digest_of(watched(folder), "inner/a.pdf", stamp) == ""


def test_a_file_that_is_still_written_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("half")
    stamp = scan(watched(tmp_path))[0]["a"]
    assert digest_of(watched(tmp_path), "a", stamp) == hashlib.sha256(b"half").hexdigest()
    (tmp_path / "a").write_text("half and more")
    assert digest_of(watched(tmp_path), "a", stamp) == ""


def test_an_event_has_one_id_for_one_change_and_another_for_the_next() -> None:
    entry, stamp = Watched(path="/scans", event="folder.scans"), Stamp(4, 1, 2)
    first = event_of("scans", entry, "a", Known(stamp, "d1"))
    assert event_of("scans", entry, "a", Known(stamp, "d1")).event_id == first.event_id
    others = [
        event_of("scans", entry, "b", Known(stamp, "d1")),
        event_of("scans", entry, "a", Known(stamp, "d2")),
        event_of("scans", entry, "a", Known(stamp._replace(mtime_ns=9), "d1")),
        event_of("other", entry, "a", Known(stamp, "d1")),
    ]
    assert len({first.event_id, *(one.event_id for one in others)}) == 5
    assert json.loads(first.data_json) == {
        "path": "/scans/a", "name": "a", "size": 4, "sha256": "d1", "folder": "scans",
    }  # fmt: skip


def test_what_is_known_is_read_back_also_for_names_that_are_no_text(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    (tmp_path / "state").mkdir()
    seen = {"scans": {os.fsdecode(b"\xff{{ time }}\n<channel>"): Known(Stamp(1, 2, 3), "d")}}
    write_seen(home, seen)
    assert read_seen(home) == seen
    (tmp_path / "state" / "folders-seen.json").write_text("[1]")
    assert read_seen(home) == {}


def test_a_folder_that_is_added_during_a_look_keeps_its_known_files(tmp_path: Path) -> None:
    home, stamp = Home(root=tmp_path), Stamp(1, 2, 3)
    for folder in (tmp_path / "state", home.run):
        folder.mkdir()
    begin(home, "a", watched(tmp_path), {"old": stamp})
    before = read_seen(home)
    begin(home, "b", watched(tmp_path), {"other": stamp})
    keep_seen(home, before, {"a": before["a"] | {"new": Known(stamp, "d")}})
    assert {name: sorted(files) for name, files in read_seen(home).items()} == {"a": ["new", "old"], "b": ["other"]}


def test_a_folder_that_was_removed_and_added_again_during_a_look_keeps_its_new_known_files(tmp_path: Path) -> None:
    home, stamp = Home(root=tmp_path), Stamp(1, 2, 3)
    for folder in (tmp_path / "state", home.run):
        folder.mkdir()
    begin(home, "a", watched(tmp_path), {"old": stamp})
    before = read_seen(home)
    FILE.remove(home, "a")
    begin(home, "a", watched(tmp_path / "state"), {"other": stamp})
    keep_seen(home, before, before)
    assert list(read_seen(home)["a"]) == ["other"]
    with pytest.raises(Conflict):
        begin(home, "a", watched(tmp_path), {"third": stamp})
    assert list(read_seen(home)["a"]) == ["other"]


def test_files_that_are_gone_are_forgotten_once_a_folder_knows_more_than_it_may_have(tmp_path: Path) -> None:
    folder, gone = tmp_path / "scans", Known(Stamp(1, 2, 3), "d")
    folder.mkdir()
    (folder / "a").write_text("a")
    seen = {"scans": {f"gone-{number}": gone for number in range(MOST_FILES)}}
    present, _ = scan(watched(folder))
    forget(seen["scans"], present)
    assert len(seen["scans"]) == MOST_FILES, "a file that comes back as it was is no new file"
    seen["scans"] |= {"a": Known(present["a"], "d")}
    forget(seen["scans"], present)
    assert list(seen["scans"]) == ["a"]
