"""Where an envelope has got to, as whoever put it sees it: never further than it is."""

from pathlib import Path

from tests.support.clock import ManualClock
from tests.support.inboxes import message
from tests.support.seeded_entropy import SeededEntropy
from turnkeeper.bus.folders import EnvelopeState, envelope_states
from turnkeeper.bus.inbox import Inbox
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
