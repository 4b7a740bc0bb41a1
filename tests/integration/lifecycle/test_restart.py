"""The restart protocol: in one order, whoever dies in between."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.lifecycle.conftest import RUNNER, RUNTIME, Supervised
from tests.support.clock import ManualClock
from tests.support.restarted import RESTARTER
from tests.support.seeded_entropy import SeededEntropy
from tests.support.standin import STANDINS
from tests.support.supervised import SUPERVISED
from turnkeeper.bus.envelope import decode
from turnkeeper.bus.inbox import FOLDERS, Inbox
from turnkeeper.config.home import Home
from turnkeeper.constellation.supervisor import markers
from turnkeeper.constellation.supervisor.handoff import AGENT, Deliverer, Draft, drafts, key_of, write_draft
from turnkeeper.constellation.supervisor.markers import read_marker, write_marker
from turnkeeper.constellation.supervisor.watchdog import KEPT_STATUS_FILES
from turnkeeper.rpc.process import Failpoints
from turnkeeper.storage.files import SystemFiles
from turnkeeper.times import rfc3339

STEPS = [
    "restart.begun",
    "restart.refused_or_not",
    "restart.drafted",
    "restart.stopped",
    "restart.remembered",
    "restart.spawned",
    "restart.started",
    "restart.serves",
    "restart.up",
    "handoff.before_inbox",
    "handoff.in_inbox",
    "handoff.archived",
    "restart.delivered",
    "restart.over",
]


def handoffs(home: Home) -> Counter[str]:
    """Every handoff in agent0's folders, by key."""
    folders = [home.inbox(AGENT) / folder for folder in FOLDERS]
    envelopes = [decode(path.read_bytes()) for folder in folders for path in folder.glob("*.json")]
    return Counter(envelope.idempotency_key for envelope in envelopes if envelope.kind == "handoff")


def archived(home: Home) -> set[str]:
    return {
        path.name.removesuffix("-handoff.json") for path in (home.root / "state/restart-archive").glob("*-handoff.json")
    }


def never_archived_before_the_inbox(home: Home) -> None:
    """I12: an archive means that the inbox had it; a draft that is gone means that the archive has it."""
    assert {key_of(name) for name in archived(home)} <= set(handoffs(home))


def request(home: Home, id_: str = "20260302T090000.000000Z-planned-0001") -> str:
    write_marker(
        markers.REQUEST.at(home), {"id": id_, "text": "what is open", "at": "2026-03-02T09:00:00Z", "tries": 0}
    )
    return id_


def claimed(home: Home) -> dict[str, Any]:
    """Claim the request as a tick does, without its child."""
    path = markers.PROCESSING.at(home)
    markers.REQUEST.at(home).rename(path)
    says = read_marker(path)
    assert isinstance(says, dict)
    return says


def run_child(home: Home, **environ: str) -> int:
    argv = [sys.executable, "-m", RESTARTER.package, str(home.root)]
    done = subprocess.run(argv, env=os.environ | environ, capture_output=True, text=True, timeout=60, check=False)
    print(done.stderr, (home.logs / "agent-runtime.log").read_text())  # noqa: T201  shown when the test fails
    return done.returncode


@pytest.mark.process
def test_a_planned_restart_from_the_request_to_the_verified_start(supervised: Supervised):
    told = supervised.home.root / "told"
    supervised.want(interval_s=0.2, command=f'echo "$TURNKEEPER_TEXT" >> {told}', announce=True)
    supervised.supervise()
    before, runner = supervised.until_up(RUNTIME), supervised.until_up(RUNNER)
    id_ = request(supervised.home)
    supervised.until(lambda: (read_marker(markers.STATUS.at(supervised.home, id=id_)) or {}).get("phase") == "verified")
    assert supervised.pid(RUNTIME) != before
    assert supervised.pid(RUNNER) == runner, "the runner is never stopped"
    assert handoffs(supervised.home) == {key_of(id_): 1}
    lines = supervised.until(lambda: told.exists() and told.read_text().splitlines())
    assert "agent-runtime is up, verified at " in lines[-1]
    assert not [line for line in lines if "task-runner" in line]
    assert archived(supervised.home) == {id_}
    assert list(drafts(supervised.home)) == []
    phases = [event["phase"] for event in supervised.events("restart.phase")]
    assert phases == ["stopping", "spawned", "up-detected"]


@pytest.mark.process
def test_the_child_is_killed_at_every_step_and_each_time_the_next_one_goes_on(supervised: Supervised):
    supervised.want(start_timeout_s=60)
    supervised.watchdog().tick()
    before = supervised.until_up(RUNTIME)
    id_ = request(supervised.home)
    claimed(supervised.home)
    for step in STEPS:
        assert run_child(supervised.home, TURNKEEPER_FAILPOINTS=step) == -9, step
        never_archived_before_the_inbox(supervised.home)
        status = read_marker(markers.STATUS.at(supervised.home, id=id_))
        assert isinstance(status, dict) or step == "restart.begun"
        assert (status or {"phase": ""})["phase"] != "verified"
        assert (status or {"stopped": before})["stopped"] == before, "only what ran at the request is ever stopped"
    assert supervised.until_up(RUNTIME) != before
    assert handoffs(supervised.home) == {key_of(id_): 1}
    assert archived(supervised.home) == {id_}
    assert list(drafts(supervised.home)) == []
    assert not markers.PROCESSING.at(supervised.home).exists()


@pytest.mark.process
def test_a_refusal_stands_though_its_child_is_killed_before_it_has_ended_the_request(supervised: Supervised):
    supervised.want()
    supervised.watchdog().tick()
    before = supervised.until_up(RUNTIME)
    id_ = request(supervised.home)
    claimed(supervised.home)
    supervised.home.config.write_text("[scheduler]\ngrase_s = 1\n")
    assert run_child(supervised.home, TURNKEEPER_FAILPOINTS="restart.refused") == -9
    supervised.home.config.write_text("")
    assert run_child(supervised.home) == 1
    status = read_marker(markers.STATUS.at(supervised.home, id=id_))
    assert isinstance(status, dict)
    assert status["phase"] == "refused"
    assert supervised.pid(RUNTIME) == before
    assert handoffs(supervised.home) == {}, "nothing took place that could be handed over"
    assert not markers.PROCESSING.at(supervised.home).exists()


@pytest.mark.process
def test_a_watchdog_that_is_killed_while_it_hands_over_a_crash_is_followed_by_one_that_goes_on(supervised: Supervised):
    supervised.want()
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    supervised.until(lambda: supervised.marker(markers.PROGRESS_SEEN, RUNTIME))
    supervised.kill(SUPERVISED)
    supervised.until(lambda: supervised.pid(SUPERVISED) is None)
    supervised.kill(RUNTIME)
    supervised.until(lambda: supervised.pid(RUNTIME) is None)
    for step in STEPS:
        if step.startswith("handoff."):
            supervised.supervise(TURNKEEPER_FAILPOINTS=step)
            supervised.until(lambda: supervised.pid(SUPERVISED) is None)
            never_archived_before_the_inbox(supervised.home)
    assert supervised.until_up(RUNTIME) != before
    supervised.supervise()
    supervised.until(lambda: archived(supervised.home) and not list(drafts(supervised.home)))
    assert list(handoffs(supervised.home).values()) == [1]


@pytest.mark.process
def test_a_tick_starts_another_child_where_one_died(supervised: Supervised):
    supervised.want()
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    id_ = request(supervised.home)
    says = claimed(supervised.home)
    write_marker(markers.PROCESSING.at(supervised.home), says | {"tries": 1, "pid": 2**22})
    supervised.kill(RUNTIME)
    supervised.until(lambda: archived(supervised.home))
    assert id_ in archived(supervised.home)
    assert supervised.until_up(RUNTIME, other_than=before)


@pytest.mark.process
def test_of_the_records_of_starts_the_newest_are_kept_whatever_their_names(supervised: Supervised):
    supervised.want()
    for number in range(KEPT_STATUS_FILES + 5):  # as agent0's requests are named, which sort behind every date
        path = markers.STATUS.at(supervised.home, id=f"agent0-{number:02}")
        path.parent.mkdir(exist_ok=True)
        write_marker(path, {"process": "none", "phase": "verified"})
    supervised.watchdog().tick()
    assert {daemon.name for daemon in STANDINS} <= {says["process"] for says in supervised.statuses()}
    assert len(supervised.statuses()) == KEPT_STATUS_FILES


@pytest.mark.process
def test_a_restart_that_never_ends_is_given_up_and_told(supervised: Supervised):
    supervised.want(interval_s=0.1)
    request(supervised.home)
    says = claimed(supervised.home)
    write_marker(markers.PROCESSING.at(supervised.home), says | {"tries": 3, "pid": None})
    supervised.watchdog().tick()
    assert not markers.PROCESSING.at(supervised.home).exists()
    assert any("did not finish in 3 tries" in condition for condition in supervised.conditions())


@pytest.mark.process
def test_a_preflight_that_fails_leaves_everything_running(supervised: Supervised):
    supervised.want()
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    supervised.home.config.write_text("[scheduler]\ngrase_s = 1\n")
    id_ = request(supervised.home)
    supervised.until(lambda: (read_marker(markers.STATUS.at(supervised.home, id=id_)) or {}).get("phase") == "refused")
    supervised.until(lambda: not markers.PROCESSING.at(supervised.home).exists())
    assert supervised.pid(RUNTIME) == before
    status = read_marker(markers.STATUS.at(supervised.home, id=id_))
    assert isinstance(status, dict)
    assert "scheduler.grase_s" in status["error"]
    assert handoffs(supervised.home) == {}


@pytest.mark.process
def test_a_crash_is_handed_over_with_what_is_known(supervised: Supervised):
    supervised.want()
    supervised.supervise()
    before = supervised.until_up(RUNTIME)
    supervised.until(lambda: supervised.marker(markers.PROGRESS_SEEN, RUNTIME))
    supervised.kill(RUNTIME)
    supervised.until_up(RUNTIME, other_than=before)
    (key,) = supervised.until(lambda: handoffs(supervised.home))
    (path,) = (supervised.home.inbox(AGENT) / "inbox").glob("*.json")
    text = decode(path.read_bytes()).text
    assert "ended unplanned" in text
    assert "ended by signal 9" in text
    assert "Unknown: " in text
    supervised.until(lambda: key in {key_of(name) for name in archived(supervised.home)})


@pytest.mark.process
def test_a_request_that_cannot_be_read_is_set_aside_and_told(supervised: Supervised):
    supervised.want()
    markers.REQUEST.at(supervised.home).write_bytes(b'{"id": ')
    supervised.watchdog().tick()
    assert not markers.PROCESSING.at(supervised.home).exists()
    assert any("cannot be read" in condition for condition in supervised.conditions())


@pytest.fixture
def deliverer(home: Home, clock: ManualClock) -> Deliverer:
    return Deliverer(home, clock=clock, entropy=SeededEntropy(1), failpoints=Failpoints({}))


def draft(home: Home, clock: ManualClock, id_: str = "one") -> Path:
    write_draft(home, Draft(id=id_, kind="crash", text="what is known", at=rfc3339(clock.now())))
    return markers.DRAFT.at(home, id=id_)


def test_a_handoff_that_agent0_has_read_already_is_not_put_again(home: Home, clock: ManualClock, deliverer: Deliverer):
    path = draft(home, clock)
    says = path.read_bytes()
    deliverer.deliver_all()
    inbox = Inbox(home.inbox(AGENT), files=SystemFiles(), clock=clock, entropy=SeededEntropy(2))
    inbox.archive_all(inbox.claim(10))
    (home.root / "state/restart-archive/one-handoff.json").unlink()
    path.write_bytes(says)  # as a crash between the inbox and the archive would leave it
    assert deliverer.deliver_all() == ["one"]
    assert handoffs(home) == {key_of("one"): 1}


def test_a_handoff_that_is_archived_is_not_put_again(home: Home, clock: ManualClock, deliverer: Deliverer):
    says = draft(home, clock).read_bytes()
    deliverer.deliver_all()
    draft(home, clock)
    assert list(drafts(home)) == [], "it is not even written"
    for envelope in (home.inbox(AGENT) / "inbox").glob("*.json"):
        envelope.unlink()  # read long ago, and pruned since
    markers.DRAFT.at(home, id="one").write_bytes(says)  # as a crash before its removal would leave it
    deliverer.deliver_all()
    assert handoffs(home) == {}
    assert list(drafts(home)) == []


def test_a_draft_that_cannot_be_read_is_handed_over_as_unknown(home: Home, clock: ManualClock, deliverer: Deliverer):
    path = draft(home, clock)
    path.write_bytes(b'{"id":')
    deliverer.deliver_all()
    (envelope,) = [decode(found.read_bytes()) for found in (home.inbox(AGENT) / "inbox").glob("*.json")]
    assert "its text is unknown" in envelope.text
    assert not path.exists()
