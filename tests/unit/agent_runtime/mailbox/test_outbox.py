"""An outbox is written by a program that may be hostile: what is taken from it, when, and what its files may say."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.mailbox.outbox import OUTGOING, Outbox, read_letter
from tests.support.clock import START, ManualClock
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.envelope import Envelope, encode
from turnkeeper.bus.letters import MOST_HOPS
from turnkeeper.errors import Exhausted, InvalidInput


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    made = Outbox(tmp_path / "codex", ManualClock(), SeededEntropy(1))
    made.folder.mkdir(mode=0o700)
    assert made.take(10) == []
    return made


def letter(**fields: object) -> Envelope:
    return read_letter(json.dumps(fields).encode(), "codex", name="file", at=START)


def lying(outbox: Outbox) -> dict[str, list[str]]:
    return {place: sorted(os.listdir(outbox.folder / place)) for place in OUTGOING}


def test_the_plain_form_is_completed_and_what_it_says_of_its_sender_counts_for_nothing() -> None:
    plain = letter(**{"from": "author", "to": "agent0", "body": "done", "ts": "2026-04-19T19:25:00Z", "thread": "t"})
    assert (plain.sender, plain.to, plain.kind, plain.text, plain.thread) == ("codex", "agent0", "message", "done", "t")
    assert (plain.id, plain.at.isoformat()) == ("file", "2026-04-19T19:25:00+00:00")
    least = letter(text="done")
    assert (least.to, least.at, least.id) == ("agent0", START, "file")
    whole = Envelope(id="m1", sender="agent0", to="agent0", kind="message", text="done", at=START)
    again = read_letter(encode(whole), "codex", name="file", at=START)
    assert (again.sender, again.id, again.text) == ("codex", "m1", "done")


def test_a_message_has_one_key_however_often_it_is_found_and_another_than_any_others() -> None:
    assert letter(text="a", id="m1").idempotency_key == letter(text="a", id="m1").idempotency_key
    found = {letter(text="a", id="m1").idempotency_key, letter(text="a").idempotency_key, letter(text="a", id="file").idempotency_key}  # fmt: skip
    other = read_letter(b'{"text": "a", "id": "m1"}', "claude", name="file", at=START).idempotency_key
    assert len(found | {other}) == 4


def test_a_message_beyond_the_limit_of_an_exchange_is_refused() -> None:
    assert letter(text="a", meta={"hops": MOST_HOPS - 1}).meta == {"hops": MOST_HOPS - 1}
    for beyond in (MOST_HOPS, MOST_HOPS + 1, 1 << 70):
        with pytest.raises(InvalidInput, match="limit of 8 messages in one exchange is reached"):
            letter(text="a", meta={"hops": beyond})
    for wrong in (-1, True, "1", 1.0):
        with pytest.raises(InvalidInput, match="wrong type"):
            letter(text="a", meta={"hops": wrong})


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(lambda v: json.dumps({"body": v}).encode()))  # fmt: skip
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = read_letter(data, "codex", name="file", at=START)
    except InvalidInput:
        return
    assert (found.sender, found.to) == ("codex", "agent0")


def test_a_file_is_left_alone_while_its_writer_writes_it(outbox: Outbox) -> None:
    path = outbox.folder / "outbox" / "slow.json"
    path.write_text('{"body": "a')
    assert outbox.take(10) == []
    path.write_text('{"body": "a long')
    assert outbox.take(10) == [], "it has changed"
    path.write_text('{"body": "a long message"}')
    (name,) = outbox.take(10)
    assert json.loads(outbox.read(name)) == {"body": "a long message"}
    outbox.finish(name)
    path.write_text('{"body": "never')
    assert outbox.take(10) == []
    assert len(outbox.take(10)) == 1, "it is not written any more: to be refused"


def test_a_file_that_is_taken_comes_again_until_it_is_finished_or_refused(outbox: Outbox) -> None:
    for number in range(3):
        path = outbox.folder / "outbox" / f"{9 - number}.json"
        path.write_text('{"body": "x"}')
        os.utime(path, ns=(number, number))
    first = outbox.take(2)
    assert [name.partition("-")[2] for name in first] == ["9.json", "8.json"], "oldest first"
    again = Outbox(outbox.folder, ManualClock(), SeededEntropy(2))
    assert sorted(again.take(2)) == sorted(first)
    outbox.finish(first[0])
    outbox.refuse(first[1], "why")
    assert [name.partition("-")[2] for name in again.take(9)] == ["7.json"]
    assert lying(outbox)["refused"] == [first[1], f"{first[1]}.reason"]


@pytest.mark.parametrize("place", OUTGOING)
def test_a_folder_that_is_a_link_is_not_followed(outbox: Outbox, tmp_path: Path, place: str) -> None:
    victim = tmp_path / "agent0"
    victim.mkdir(mode=0o700)
    (victim / "mine.json").write_text('{"body": "mine"}')
    (outbox.folder / "outbox" / "a.json").write_text('{"body": "x"}')
    (outbox.folder / place).rename(tmp_path / "before")
    (outbox.folder / place).symlink_to(victim)
    with pytest.raises(InvalidInput, match="is not a folder"):
        outbox.take(10)
    assert os.listdir(victim) == ["mine.json"]


def hard_link(path: Path) -> None:
    path.with_name(".other").write_text('{"body": "x"}')
    path.hardlink_to(path.with_name(".other"))


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "symbolic link": (lambda path: path.symlink_to("/etc/hostname"), "cannot be opened"),
    "hard link": (hard_link, "hard link"),
    "pipe": (os.mkfifo, "not a plain file"),
    "folder": (Path.mkdir, "not a plain file"),
    "large": (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 40), "is larger than"),
    "empty": (Path.touch, "not JSON"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_plain_file_of_ones_own_is_set_aside_and_never_followed(outbox: Outbox, kind: str) -> None:
    make, says = ODD[kind]
    make(outbox.folder / "outbox" / "odd.json")
    assert outbox.take(10) == [], "it may still be in the making"
    (name,) = outbox.take(10)
    with pytest.raises(InvalidInput, match=says):
        read_letter(outbox.read(name), "codex", name=name, at=START)
    outbox.refuse(name, "why")
    assert lying(outbox) == {"outbox": lying(outbox)["outbox"], "taken": [], "refused": [name, f"{name}.reason"]}


def test_a_file_of_another_user_is_refused(outbox: Outbox) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = outbox.folder / "outbox" / "theirs.json"
    path.write_text('{"body": "x"}')
    os.chown(path, 12345, -1)
    outbox.take(10)
    (name,) = outbox.take(10)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        outbox.read(name)


def test_when_too_much_was_refused_nothing_more_is_taken_until_somebody_looks(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_runtime.mailbox.outbox.MOST_REFUSED", 2)
    for number in range(3):
        (outbox.folder / "outbox" / f"{number}.json").write_text('{"body": "x"}')
    for name in outbox.take(2):
        outbox.refuse(name, "why")
    with pytest.raises(Exhausted, match="refused messages"):
        outbox.take(2)
    assert len(lying(outbox)["outbox"]) == 1
