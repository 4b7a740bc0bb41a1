"""Receipts: one line in the ledger for what was received, one ack envelope for a sender that asked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clock import START, ManualClock
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.acks import AckLedger, ack_of, acknowledge, read_acks
from turnkeeper.bus.envelope import Envelope, decode, encode
from turnkeeper.bus.inbox import Claimed, Inbox, Put
from turnkeeper.errors import Exhausted
from turnkeeper.storage.files import SystemFiles


def asking(**changes: object) -> Envelope:
    fields = {"id": "m1", "sender": "agent1", "to": "agent0", "kind": "message", "text": "secret", "at": START}
    return Envelope(**{**fields, "requires_ack": True, "thread": "t1", "swarm": "night", **changes})  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path, clock: ManualClock) -> AckLedger:
    return AckLedger(tmp_path, "agent-runtime", clock)


@pytest.fixture
def inboxes(tmp_path: Path, clock: ManualClock) -> dict[str, Inbox]:
    folders = {name: tmp_path / "agents" / name for name in ("agent0", "agent1")}
    return {
        name: Inbox(folder, files=SystemFiles(), clock=clock, entropy=SeededEntropy(1))
        for name, folder in folders.items()
    }


def put_to(inboxes: dict[str, Inbox]) -> Callable[[str], Callable[[Envelope], Put] | None]:
    return lambda name: inboxes[name].put if name in inboxes else None


def test_an_ack_returns_to_the_sender_on_the_same_thread_and_asks_for_none_itself() -> None:
    ack = ack_of(asking(), at=START)
    assert (ack.sender, ack.to, ack.kind, ack.thread, ack.swarm) == ("agent0", "agent1", "ack", "t1", "night")
    assert not ack.requires_ack
    assert ack.meta == {"envelope": "m1"}
    assert decode(encode(ack)) == ack


def test_a_received_envelope_leaves_a_line_without_its_text_and_an_ack_once(
    tmp_path: Path, clock: ManualClock, ledger: AckLedger, inboxes: dict[str, Inbox]
) -> None:
    inboxes["agent0"].put(asking())
    (claimed,) = inboxes["agent0"].claim(1)
    for _ in range(2):  # a crash before the archive makes both again
        put = acknowledge(claimed, ledger=ledger, clock=clock, put_to=put_to(inboxes))
    assert put is not None
    assert not put.fresh
    assert inboxes["agent1"].waiting() == 1
    (line,) = read_acks(tmp_path)
    assert line["envelope"] == "m1"
    assert line["from"] == "agent1"
    assert (tmp_path / "channel-acks-2026-03-02.jsonl").read_text().count("\n") == 2
    assert "secret" not in (tmp_path / "channel-acks-2026-03-02.jsonl").read_text()
    assert (tmp_path / "channel-acks-2026-03-02.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "envelope", [asking(requires_ack=False), asking(sender="author")], ids=["not asked", "no inbox"]
)
def test_without_a_wish_or_without_an_inbox_there_is_a_line_and_no_ack(
    tmp_path: Path, clock: ManualClock, ledger: AckLedger, inboxes: dict[str, Inbox], envelope: Envelope
) -> None:
    claimed = Claimed(name="n", envelope=envelope)
    assert acknowledge(claimed, ledger=ledger, clock=clock, put_to=put_to(inboxes)) is None
    assert len(list(read_acks(tmp_path))) == 1
    assert inboxes["agent1"].waiting() == 0


def test_each_day_has_its_file_and_they_are_read_by_time_past_a_torn_line(
    tmp_path: Path, clock: ManualClock, ledger: AckLedger
) -> None:
    ledger.received([Claimed(name="a", envelope=asking(id="m1"))])
    with (tmp_path / "channel-acks-2026-03-02.jsonl").open("ab") as file:
        file.write(b'[1]\n{"torn":')
    clock.advance(86_400)
    ledger.received([Claimed(name="b", envelope=asking(id="m2"))], durable=False)
    assert [record["envelope"] for record in read_acks(tmp_path)] == ["m1", "m2"]
    assert {path.name for path in tmp_path.glob("*.jsonl")} == {
        "channel-acks-2026-03-02.jsonl",
        "channel-acks-2026-03-03.jsonl",
    }


def test_two_processes_write_whole_lines_into_one_file(tmp_path: Path, clock: ManualClock) -> None:
    ledgers = [AckLedger(tmp_path, name, clock) for name in ("agent-runtime", "turnkeeper")]
    for place in range(50):
        ledgers[place % 2].received([Claimed(name="n", envelope=asking(id=f"m{place}"))], durable=False)
    lines = (tmp_path / "channel-acks-2026-03-02.jsonl").read_text().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 50


def test_a_ledger_that_cannot_be_written_is_a_typed_error(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "channel-acks-2026-03-02.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exhausted):
        AckLedger(tmp_path, "x", clock).received([Claimed(name="n", envelope=asking())])
    assert not (tmp_path / "elsewhere").exists()
