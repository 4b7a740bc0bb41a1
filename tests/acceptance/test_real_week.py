"""What `simulate` says of the week in which New York's clocks go forward, real daemons do, on a faked wall clock."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.constellation import Constellation
from turnkeeper.errors import Unreachable

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.timeout(300)]

POLICIES = ("skip", "run-once", "run-all")
# Half past two in New York is 07:30 in UTC until 8 March, when it does not exist and fires at 07:00, then 06:30.
BEGIN, BEFORE, GONE = "2026-03-07 07:29:40", "2026-03-07 07:29:57", "2026-03-07 07:40:00"
BACK, END = "2026-03-09 18:00:00", "2026-03-10 00:00:00"
EXPECTED = {
    "skip": [("03-07T07:30", "succeeded", 1), ("03-09T06:30", "skipped", 2)],
    "run-once": [("03-07T07:30", "succeeded", 1), ("03-09T06:30", "succeeded", 2)],
    "run-all": [("03-07T07:30", "succeeded", 1), ("03-08T07:00", "succeeded", 1), ("03-09T06:30", "succeeded", 1)],
}


@pytest.fixture
def fake() -> Iterator[Any]:
    """The variables that let a process begin at a wall-clock time in UTC; its steady clock stays the real one."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed: make test-services")

    def at(text: str) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME": f"@{text}",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",  # else a wait for the steady clock is none, and threads spin
            "TZ": "UTC",
        }

    return at


def test_a_week_with_a_clock_change_and_an_outage_goes_as_simulated(stopped: Constellation, fake, tmp_path) -> None:
    declared = tmp_path / "tasks.toml"
    declared.write_text("\n".join(map(nightly, POLICIES)))
    applied = stopped.attempt("task-runner", "apply", str(declared), **fake(BEGIN))
    assert applied.returncode == 0, applied.stderr

    stopped.start(**fake(BEFORE))
    for policy in POLICIES:
        until_outcome(stopped, policy, "succeeded", 1)
    stopped.stop()
    stopped.start(**fake(BACK))
    until_outcome(stopped, "skip", "skipped", 1)
    until_outcome(stopped, "run-once", "succeeded", 2)
    until_outcome(stopped, "run-all", "succeeded", 3)

    down = f"{instant(GONE)}..{instant(BACK)}"
    rows = stopped.ask("task-runner", "simulate", "--from", instant(BEGIN), "--to", instant(END), "--down", down)
    for policy in POLICIES:
        planned = sorted((row for row in rows if row["task"] == policy), key=lambda row: row["nominal_at"])
        happened = sorted(stopped.history(policy), key=lambda entry: entry["nominal_at"])
        assert [told(entry) for entry in happened] == [told(row) for row in planned] == EXPECTED[policy]
        for row, entry in zip(planned, happened, strict=True):
            assert never_earlier(entry["fired_at"], row["fired_at"])
    assert stopped.violations() == []


def until_outcome(constellation: Constellation, policy: str, outcome: str, count: int) -> None:
    def probe() -> bool:
        try:
            fires = constellation.fires(policy)
        except Unreachable:  # a process with a faked clock is slow to take a connection
            return False
        return sum(fire.outcome == outcome for fire in fires) >= count

    constellation.until(f"{count} {outcome} of {policy}", probe, timeout_s=90)


def nightly(policy: str) -> str:
    return (
        f'[[task]]\nname = "{policy}"\ncron = "30 2 * * *"\ntimezone = "America/New_York"\ncatch_up = "{policy}"\n'
        'category = "catch-up-summary"\nchannel = "general"\nprompt = "Summarise."\n'
    )


def instant(text: str) -> str:
    return text.replace(" ", "T") + "Z"


def told(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["nominal_at"][5:16], row["outcome"], row["count"]


def never_earlier(fired: str | None, planned: str | None) -> bool:
    """Return whether what was to fire did, not before its time; what was not, did not."""
    if fired is None or planned is None:
        return fired == planned
    late = datetime.fromisoformat(fired) - datetime.fromisoformat(planned)
    # A day and a half lies between what is planned here: a slow machine's minutes cannot be taken for a wrong fire.
    return timedelta(0) <= late < timedelta(minutes=10)
