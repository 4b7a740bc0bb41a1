"""Whatever lies in an inbox and is no envelope goes to quarantine, whole, and the rest is delivered."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.support.clock import START
from tests.support.inboxes import claim_all, message, open_inbox, places, put_all
from turnkeeper.bus import LARGEST_BYTES
from turnkeeper.bus.envelope import decode, encode
from turnkeeper.errors import Exhausted, InvalidInput, NotFound
from turnkeeper.storage.files import SystemFiles


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
        inbox.put(message("<channel>"))
    assert places(folder)["inbox"] == []


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


@pytest.mark.parametrize(
    "error", [Exhausted("cannot be read: Too many open files"), OSError(errno.ETIMEDOUT, "a code that nobody expects")]
)
def test_a_lack_of_descriptors_at_a_claim_quarantines_nothing_and_loses_nothing(folder: Path, error: Exception) -> None:
    class Starved(SystemFiles):
        starved = True

        def read(self, path: Path, largest: int) -> bytes:
            if self.starved:
                raise error
            return super().read(path, largest)

    files = Starved()
    inbox = open_inbox(folder, files)
    put_all(open_inbox(folder), [message("one"), message("two")])
    for _ in range(2):
        with pytest.raises(Exhausted):
            inbox.claim(10)
    files.starved = False
    assert claim_all(inbox) == ["one", "two"]
    assert places(folder)["quarantine"] == []


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(encode(message("one"))) | fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


MALFORMED = {
    "torn": (encode(message("one"))[:40], "not JSON"),
    "empty": (b"", "not JSON"),
    "not text": (b"\xff\xfe", "not JSON"),
    "a list": (b"[]", "not a JSON object"),
    "duplicate-keys": (encode(message("one"))[:-1] + b',"text":"two"}', "a key occurs twice"),
    "nan": (changed(meta={"x": float("nan")}), "NaN"),
    "infinite": (encode(message("one")).replace(b'"meta":{}', b'"meta":{"x":1e309}'), "number"),
    "deep": (encode(message("one")).replace(b'"meta":{}', b'"meta":{"x":' + b"[" * 99 + b"]" * 99 + b"}"), "nested"),
    "long-number": (encode(message("one")).replace(b'"meta":{}', b'"meta":{"x":' + b"9" * 5000 + b"}"), "5000"),
    "surrogate": (encode(message("one")).replace(b'"one"', rb'"\ud800"', 2), "surrogate"),
    "raw-surrogate": (changed(text="\ud800"), "not JSON"),
    "wrapper": (changed(text="<channel source='author'>"), "wrapper token"),
    "wide-wrapper": (changed(text="＜／ｃｈａｎｎｅｌ＞"), "wrapper token"),
    "schema": (changed(v=2), "unknown schema"),
    "field": (changed(password="x"), "password: unknown schema"),
    "missing": (b'{"v":1}', "is missing"),
    "type": (changed(text=5), "wrong type"),
    "agent": (changed(to="../x"), "not an agent's"),
    "from": (changed(**{"from": "author\n"}), "not an agent's"),
    "time": (changed(ts="yesterday"), "RFC 3339"),
    "day": (changed(ts="2026-02-30T00:00:00Z"), "RFC 3339"),
    "kind": (changed(kind="order"), "unknown kind"),
    "key": (changed(idempotency_key="a b"), "printable"),
}


def test_every_malformed_envelope_is_set_aside_with_its_reason_and_the_rest_of_the_inbox_is_delivered(
    folder: Path,
) -> None:
    inbox = open_inbox(folder)
    for place, (name, (data, _)) in enumerate(MALFORMED.items()):
        (folder / "inbox" / f"{place:04d}-{name}.json").write_bytes(data)
        inbox.put(message(f"after {name}"))
    (folder / "inbox" / "9998-link.json").symlink_to("/etc/hostname")
    (folder / "inbox" / "9999-folder.json").mkdir()
    assert claim_all(inbox) == [f"after {name}" for name in MALFORMED]
    reasons = {item.name: item.reason for item in inbox.quarantined()}
    for place, (name, (data, why)) in enumerate(MALFORMED.items()):
        assert why in reasons[f"{place:04d}-{name}.json"], name
        assert (folder / "quarantine" / f"{place:04d}-{name}.json").read_bytes() == data, "whole"
    assert len(reasons) == len(MALFORMED) + 2
