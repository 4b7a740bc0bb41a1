"""Real processes: a sample of the rounds of `turn_kills`, poison, and SIGTERM in the middle of a turn."""

import signal
from collections.abc import Iterator

import pytest

from tests.integration.runtime.turn_kills import CLOCK, PATIENCE_S, Kills, Sent, fire
from turnkeeper.bus.event_log import read_events
from turnkeeper.config.home import Home
from turnkeeper.errors import Unreachable
from turnkeeper.v1 import agent_runtime_pb2 as wire

pytestmark = pytest.mark.process
SAMPLE = (1000, 1001, 1006)  # one plain, one cancelled, one that its author approves
# Killed between a step's last result and its checkpoint: the thread was taken to be at its end. What a seed draws is the
# same each time, when it strikes is not; `test_crashes` strikes there each time.
FAILED_ONCE = (34, 89)


@pytest.fixture
def kills(home: Home) -> Iterator[Kills]:
    made = Kills(home)
    yield made
    made.close()


def test_a_fire_survives_kill_9_at_any_moment_of_its_turn(kills: Kills) -> None:
    for seed in (*FAILED_ONCE, *SAMPLE):
        try:
            told = kills.round(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        print(f"seed {seed}: {told}")  # noqa: T201  shown when a later one fails


def test_one_fire_through_a_death_at_every_failpoint(kills: Kills) -> None:
    request = fire(1, "thread-a")
    kills.nursery.start("runtime.accepted")
    caller = kills.nursery.serving()
    assert caller is not None
    with pytest.raises(Unreachable):
        caller.Fire(request)
    assert kills.nursery.wait() == -signal.SIGKILL
    for failpoint in ("claimed", "started", "turn_step", "finished", "recorded"):
        kills.nursery.start(f"runtime.{failpoint}")
        assert kills.nursery.wait() == -signal.SIGKILL, failpoint
    kills.nursery.start()
    caller = kills.nursery.serving()
    assert caller is not None
    receipt = caller.Fire(request)
    assert receipt.disposition == wire.FireReceipt.DUPLICATE
    sent = Sent(request=request, turn_id=receipt.turn_id)
    kills.check(sent)
    (shown,) = caller.GetConversation(wire.GetConversationRequest(channel="main")).turns
    assert (shown.turn_id, shown.status) == (receipt.turn_id, "succeeded")
    kills.nursery.terminate()
    assert kills.nursery.wait() == 0
    assert (kills.lying("inbox"), kills.lying("claimed"), len(kills.lying("delivered"))) == ([], [], 1)
    assert modes(kills).count("start") <= 1
    assert not kills.home.pid("agent-runtime").exists()


def begun(kills: Kills, *, grace_s: float = 10.0) -> list[Sent]:
    """Start a daemon, send it a fire, and wait until its turn is in the middle of a call to the model."""
    (kills.home.root / "hang").touch()
    kills.nursery.start(grace_s=grace_s)
    caller = kills.nursery.serving()
    assert caller is not None
    fires = [Sent(request=fire(1, "thread-a"))]
    kills.send(caller, fires)
    deadline = CLOCK.monotonic() + PATIENCE_S
    while not (kills.home.root / "hanging").exists():
        assert CLOCK.monotonic() < deadline
        CLOCK.block(0.01)
    return fires


def modes(kills: Kills) -> list[str]:
    return [record["mode"] for record in read_events(kills.home.logs) if record["event"] == "turn.started"]


def test_sigterm_stops_a_turn_at_its_next_step_and_the_next_process_goes_on(kills: Kills) -> None:
    fires = begun(kills)
    kills.nursery.terminate()
    (kills.home.root / "hang").unlink()
    assert kills.nursery.wait() == 0
    assert kills.states(fires[0]) == ["STARTED"]
    assert len(kills.lying("claimed")) == 1
    kills.last_life(fires)
    kills.check(fires[0])
    assert modes(kills) == ["start", "continue"]


def test_sigterm_waits_for_no_thread_that_hangs_and_loses_nothing(kills: Kills) -> None:
    fires = begun(kills, grace_s=0.1)
    kills.nursery.terminate()
    assert kills.nursery.wait() == 0, "while the thread still hangs"
    (kills.home.root / "hang").unlink()
    kills.last_life(fires)
    kills.check(fires[0])


def test_a_fire_that_kills_its_process_is_given_up_after_five_tries(kills: Kills) -> None:
    sent = Sent(request=fire(1, "thread-a"))
    for tries in range(5):
        kills.nursery.start("runtime.turn_step:1")
        if tries == 0:
            caller = kills.nursery.serving()
            assert caller is not None
            kills.send(caller, [sent])
        assert kills.nursery.wait() == -signal.SIGKILL
    kills.nursery.start()
    assert kills.nursery.serving() is not None
    deadline = CLOCK.monotonic() + PATIENCE_S
    while not kills.lying("quarantine"):
        assert CLOCK.monotonic() < deadline
        CLOCK.block(0.01)
    assert kills.states(sent) == ["STARTED", "FAILED"]
    assert (kills.lying("inbox"), kills.lying("claimed")) == ([], [])
    other = Sent(request=fire(2, "thread-a"))
    kills.last_life([other])
    kills.check(other)
