"""Schedules that would take long to compute: the daemon goes on sending other tasks' fires on time meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from task_runner.service import simulate
from task_runner.service.simulate import Span
from task_runner.service.task_spec import Defaults, parse_spec
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer
from tests.integration.runner.test_daemon_process import start
from tests.support.clock import look_again
from turnkeeper.errors import InvalidInput
from turnkeeper.rpc.channel import connect
from turnkeeper.v1 import schedules_pb2 as wire
from turnkeeper.v1.schedules_pb2_grpc import SchedulesStub

REST = {"category": "loop", "channel": "general", "prompt": "p"}
RULES = [
    "FREQ=YEARLY;COUNT=10000;BYSETPOS=1;BYDAY=MO",
    "FREQ=DAILY;COUNT=10000;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29",
    "FREQ=YEARLY;COUNT=10000;BYWEEKNO=53;BYDAY=SU",
    "FREQ=WEEKLY;BYSETPOS=7;BYDAY=MO",
]
NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.process
async def test_other_tasks_fire_on_time_while_hostile_rules_are_created(home, peer: Peer) -> None:
    peer.finishes = True
    daemon = await start(home, "serve")
    channel = connect(home.socket("task-runner"))
    stub: Any = SchedulesStub(channel)
    tick = wire.TaskSpec(name="tick", every="1s", **REST)
    await stub.CreateTask(wire.CreateTaskRequest(spec=tick), wait_for_ready=True)

    async def hostile(number: int) -> None:
        rule = f"DTSTART:20260101T0900{number:02} RRULE:{RULES[number % len(RULES)]}"
        spec = wire.TaskSpec(name=f"hostile-{number}", rrule=rule, timezone="Europe/Riga", **REST)
        for call, request in (
            (stub.CreateTask, wire.CreateTaskRequest(spec=spec)),
            (stub.PreviewSchedule, wire.PreviewScheduleRequest(spec=spec, count=1000)),
            (stub.ApplyTasks, wire.ApplyTasksRequest(specs=[spec])),
            (stub.ExplainFire, wire.ExplainFireRequest(name=spec.name, at="2300-01-01T00:00:00Z")),
            (stub.Simulate, wire.SimulateRequest(names=[spec.name], **{"from": _stamp(0), "to": _stamp(3000)})),
        ):
            await asyncio.gather(call(request), return_exceptions=True)  # what is refused is refused quickly

    await asyncio.gather(*map(hostile, range(20)))
    fires: list[wire.Fire] = []
    while sum(bool(fire.fired_at.seconds) for fire in fires) < 3:
        await look_again()
        fires = (await stub.ListFires(wire.ListFiresRequest(name="tick", limit=1000))).fires
    assert max(fire.late_s for fire in fires) < 5, "a rule that is counted out takes minutes"
    assert not [fire for fire in fires if fire.outcome == "skipped"], "none was missed"
    await channel.close()
    daemon.terminate()
    assert await daemon.wait() == 0


def pausing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that grows each time the service gives way to the runner's own work."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(rig.clock, "sleep", sleep)
    return pauses


async def test_simulating_gives_way_in_each_round_and_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn that takes ten years, and a task of every minute that skips while it runs: rounds without a row."""
    await rig.create(cron="* * * * *", overlap="skip")
    monkeypatch.setattr(simulate, "MOST_ROUNDS", 500)
    pauses = pausing(rig, monkeypatch)
    asked = wire.SimulateRequest(names=["digest"], turn="3650d", **{"from": _stamp(0), "to": _stamp(3650)})
    answer = await rig.service.simulate(asked)
    assert answer.truncated
    assert len(pauses) >= 500


async def test_a_preview_of_many_times_gives_way(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = wire.PreviewScheduleRequest(spec=wire.TaskSpec(rrule="FREQ=MINUTELY"), count=2**31 - 1)
    pauses = pausing(rig, monkeypatch)
    answer = await rig.service.preview_schedule(asked)
    assert len(answer.nominals) == 1000
    assert len(pauses) >= 99
    first, last = answer.nominals[0].nominal_at.seconds, answer.nominals[-1].nominal_at.seconds
    assert last - first == 999 * 60, "none is left out between two batches"


async def test_a_home_that_lets_a_million_fires_catch_up_commits_ten_thousand(rig: Rig) -> None:
    with pytest.raises(InvalidInput, match="max_catch_up: must be from 1 to 10000"):
        await rig.create(max_catch_up=10_001)
    task = await rig.create(every="1m", catch_up="run-all", max_catch_up=10_000)
    definition = parse_spec(task.spec, Defaults(timezone="UTC"), rig.clock.now())
    rows = list(simulate.simulated("task-1", definition, Span(start=NOON, end=NOON + timedelta(minutes=3))))
    assert len(rows) == 3


async def test_a_backfill_of_ten_years_of_minutes_is_refused(rig: Rig) -> None:
    await rig.create(cron="* * * * *")
    rig.clock.advance(86400 * 3650)
    with pytest.raises(InvalidInput, match="more than 10000 scheduled times"):
        await rig.service.backfill_task(
            wire.BackfillTaskRequest(name="digest", **{"from": "2026-01-01T00:00:00Z", "to": "2036-01-01T00:00:00Z"})
        )


def _stamp(days: int) -> Any:
    made = wire.Nominal()
    made.nominal_at.FromDatetime(NOON + timedelta(days=days))
    return made.nominal_at
