"""What `list`, `show`, `history` and `explain` say while a task waits, and while the runtime is away."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from task_runner.daemon import assembly, reads
from task_runner.service import lists, service
from task_runner.store import reading
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer, State
from tests.support.clock import ManualClock
from turnkeeper.config.home import Home
from turnkeeper.errors import InvalidInput, Unreachable
from turnkeeper.v1 import schedules_pb2 as wire

T0 = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def one_clock(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now


async def interrupted(rig: Rig, peer: Peer, **fields: str) -> None:
    await rig.create(**fields)
    await rig.pass_time(60)
    rig.dispatcher.wake()
    await rig.trail.saw("fire.accepted")
    await peer.play(peer.received[-1].fire_id, State.STARTED)
    await peer.play(peer.received[-1].fire_id, State.INTERRUPTED)
    await rig.trail.saw("fire.interrupted")


async def listed(rig: Rig) -> wire.Task:
    (task,) = (await rig.service.list_tasks(wire.ListTasksRequest())).tasks
    return task


async def test_while_a_task_waits_for_its_author_its_next_time_lies_ahead_and_what_came_due_is_missed(
    rig: Rig, peer: Peer
) -> None:
    async with rig.running():
        await interrupted(rig, peer)
        await rig.pass_time(270)
        for task in (await listed(rig), await rig.task()):
            assert task.state == "interrupted"
            assert task.next_fire_at.ToDatetime(tzinfo=UTC) == T0 + timedelta(seconds=360)
            assert task.missed == 4  # 09:02 to 09:05, none of them within the grace any more
            assert task.waits_for == "its author: turnkeeper approvals list"
        await peer.play(peer.received[-1].fire_id, State.RESUMED)
        await peer.play(peer.received[-1].fire_id, State.SUCCEEDED)
        await rig.trail.saw("fire.settled")
        task = await listed(rig)
        assert (task.waits_for, task.missed) == ("", 3)  # the newest of them is caught up


async def test_a_rule_without_a_start_of_its_own_fires_on_whole_minutes(rig: Rig, peer: Peer) -> None:
    rig.clock.advance(17.25)
    rules = {"free": "FREQ=MINUTELY;INTERVAL=2", "bound": "DTSTART:20260302T090030\nRRULE:FREQ=MINUTELY"}
    for name, rule in rules.items():
        await rig.create(name, rrule=rule, every=None)
    first = {name: (await rig.task(name)).next_fire_at.ToDatetime(tzinfo=UTC) - T0 for name in rules}
    assert first == {"free": timedelta(seconds=60), "bound": timedelta(seconds=30)}
    asked = wire.PreviewScheduleRequest(spec=wire.TaskSpec(rrule="FREQ=HOURLY;COUNT=2"))
    shown = (await rig.service.preview_schedule(asked)).nominals
    assert [nominal.local for nominal in shown] == ["2026-03-02T09:01:00+00:00", "2026-03-02T10:01:00+00:00"]


async def test_an_interval_that_becomes_a_rule_fires_on_whole_minutes(rig: Rig, peer: Peer) -> None:
    rig.clock.advance(17)
    await rig.create()
    spec = wire.TaskSpec(name="digest", rrule="FREQ=DAILY", category="loop", channel="general", prompt="p")
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
    assert (await rig.task()).next_fire_at.ToDatetime(tzinfo=UTC) == T0 + timedelta(minutes=1)


async def test_a_runtime_that_may_still_be_starting_is_not_said_to_be_away(rig: Rig, peer: Peer) -> None:
    await peer.stop()
    await rig.create()
    with pytest.raises(Unreachable):
        await rig.dispatcher.serve_once()
    await rig.pass_time(14)
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).runtime_away == ""
    await rig.pass_time(1)
    assert "away since" in (await rig.service.list_tasks(wire.ListTasksRequest())).runtime_away
    await rig.close()


@pytest.mark.parametrize(("catch_up", "outcome"), [("run-once", "pending"), ("skip", "skipped")])
async def test_an_outage_of_the_runtime_is_one_row_and_is_named_as_the_cause(
    rig: Rig, peer: Peer, catch_up: str, outcome: str
) -> None:
    await peer.stop()
    await rig.create(catch_up=catch_up)
    for _ in range(5):
        with pytest.raises(Unreachable):
            await rig.dispatcher.serve_once()
        await rig.pass_time(60)
    await rig.pass_time(30)
    since = "agent runtime away since 2026-03-02T09:00:00Z"
    asked = wire.ListFiresRequest(name="digest", without_folded=True)
    (row,) = (await rig.service.list_fires(asked)).fires
    assert (row.outcome, row.count, row.cause) == (outcome, 5, since)
    answer = await rig.service.list_tasks(wire.ListTasksRequest())
    assert answer.runtime_away == since
    assert answer.tasks[0].waits_for == ("agent-runtime: turnkeeper status" if outcome == "pending" else "")
    for at in ("2026-03-02T09:02:00Z", "2026-03-02T09:30:00Z"):
        said = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=at))
        assert since in said.lines[-1]
    await peer.start()
    await rig.close()
    rig = rig.again()
    await rig.pass_time(30)
    async with rig.running("dispatcher"):
        await rig.trail.saw("fire.accepted")
    row = (await rig.service.list_fires(asked)).fires[-1]
    assert row.cause == "agent runtime away from 2026-03-02T09:00:00Z to 2026-03-02T09:04:00Z"
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).runtime_away == ""
    await rig.close()


REQUESTS = (
    {}, {"state": "active"}, {"state": "waiting"}, {"state": "paused"}, {"category": "research"}, {"channel": "general"},
    {"tags": {"team": "ops"}}, {"limit": 2}, {"state": "nosuch"}, {"category": "nosuch"},
)  # fmt: skip


@pytest.mark.sqlite_only("a command reads the store's file itself only where it is one")
async def test_a_command_without_a_daemon_lists_what_the_service_lists(rig: Rig, peer: Peer) -> None:
    async with rig.running():
        await interrupted(rig, peer)
        await rig.create("tagged", every="2h", tags={"team": "ops"}, category="research")
        await rig.create("paced", every=None, dynamic=True)
        await rig.create("once", every=None, at="2026-03-02T18:00:00Z")
        await rig.create("gone", every="3h")
        await rig.service.delete_task(wire.DeleteTaskRequest(name="gone"))
        await rig.service.pause_task(wire.PauseTaskRequest(name="once", note="holidays"))
        await rig.pass_time(400)
    await peer.stop()
    with pytest.raises(Unreachable):
        await rig.dispatcher.serve_once()
    for fields in REQUESTS:
        request = wire.ListTasksRequest(**fields)
        now = rig.clock.now()
        found = listed_by(lambda: reading.read(Path(rig.place), lambda one: lists.list_tasks(one, request, now)))  # noqa: B023
        assert found == await answer(rig.service.list_tasks(request))
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).total == 4


def listed_by(read: Callable[[], wire.ListTasksResponse | None]) -> wire.ListTasksResponse | str | None:
    try:
        return read()
    except InvalidInput as error:
        return str(error)


async def answer(call: Awaitable[wire.ListTasksResponse]) -> wire.ListTasksResponse | str:
    try:
        return await call
    except InvalidInput as error:
        return str(error)


def test_a_preview_without_a_daemon_is_the_service_s(
    home: Home, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (reads, assembly):  # each reads the time by itself, and both are to answer for the same
        monkeypatch.setattr(module, "SystemClock", lambda: clock)
    for settings in (None, "[model]\n", "[scheduler]\ntimezone = 'Asia/Tokyo'\n"):
        if settings is not None:
            home.config.write_text(settings)
        for spec in ({"cron": "0 9 * * *"}, {"every": "90m"}, {"rrule": "FREQ=DAILY;COUNT=3"}, {"on": "deploy"}):
            request = wire.PreviewScheduleRequest(spec=wire.TaskSpec(**spec), count=13)
            getattr(request, "from").FromDatetime(T0)
            assert reads.read(home, "PreviewSchedule", request) == assembly.call(home, "PreviewSchedule", request)
    for bad in ("'Atlantis'", "7"):
        home.config.write_text(f"[scheduler]\ntimezone = {bad}\n")
        with pytest.raises(InvalidInput, match="timezone"):
            reads.read(home, "PreviewSchedule", wire.PreviewScheduleRequest(spec=wire.TaskSpec(cron="0 9 * * *")))


async def test_without_a_time_explain_answers_for_the_newest_fire_there_was(rig: Rig, peer: Peer) -> None:
    await rig.create(every="10m")
    asked = wire.ExplainFireRequest(name="digest")
    rig.clock.advance(30.5)
    by_hand = await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    said = await rig.service.explain_fire(asked)
    assert (said.fire.fire_id, said.verdict) == (by_hand.fire_id, "pending")
    assert f"{by_hand.fire_id} was requested manually." in said.lines
    assert "jitter" not in " ".join(said.lines)
    await rig.pass_time(600)
    said = await rig.service.explain_fire(asked)
    assert said.at.ToDatetime(tzinfo=UTC) == T0 + timedelta(minutes=10)
    await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    assert "~m" in (await rig.service.explain_fire(asked)).fire.fire_id


async def test_the_history_of_all_tasks_has_pages_a_filter_and_a_total(rig: Rig, peer: Peer) -> None:
    for name in ("one", "two"):
        await rig.create(name)
    for _ in range(3):
        await rig.pass_time(60)
    every = wire.ListFiresRequest(limit=4)
    first = await rig.service.list_fires(every)
    assert (len(first.fires), first.total) == (4, 6)
    assert {fire.task_name for fire in first.fires} == {"one", "two"}
    await rig.pass_time(60)  # what comes meanwhile is on no page behind the first
    rest = await rig.service.list_fires(wire.ListFiresRequest(limit=4, cursor=first.next_cursor))
    assert (len(rest.fires), rest.next_cursor) == (2, "")
    assert not {fire.entry_id for fire in first.fires} & {fire.entry_id for fire in rest.fires}
    waiting = await rig.service.list_fires(wire.ListFiresRequest(name="one", outcome="pending"))
    assert [fire.outcome for fire in waiting.fires] == ["pending"]
    assert waiting.total == 1
    for wrong in (
        wire.ListFiresRequest(outcome="late"),
        wire.ListFiresRequest(cursor="12"),
        wire.ListFiresRequest(cursor="é"),
    ):
        with pytest.raises(InvalidInput):
            await rig.service.list_fires(wrong)


async def test_what_came_due_in_a_pause_is_not_laid_to_the_runtime(rig: Rig, peer: Peer) -> None:
    await peer.stop()
    await rig.create()
    with pytest.raises(Unreachable):
        await rig.dispatcher.serve_once()
    await rig.pass_time(120)
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest"))
    rows = (await rig.service.list_fires(wire.ListFiresRequest(name="digest", without_folded=True))).fires
    assert [(row.reason, row.cause) for row in rows] == [("paused", "paused since 2026-03-02T09:02:00Z")]


async def test_a_ledger_is_cut_to_a_span_of_time(rig: Rig, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    start = rig.clock.now()
    for number in range(1, 5):
        await rig.create(f"task{number}", at=(start + timedelta(seconds=60 * number)).isoformat())
    await rig.pass_time(240)
    asked = wire.ListFiresRequest()
    getattr(asked, "from").FromDatetime(start + timedelta(seconds=120))
    asked.to.FromDatetime(start + timedelta(seconds=240))
    found = await rig.service.list_fires(asked)
    nominals = [fire.nominal_at.ToDatetime(UTC) for fire in found.fires]
    assert sorted(nominals) == [start + timedelta(seconds=120), start + timedelta(seconds=180)], "the end is not in it"
    assert found.total == 2
    monkeypatch.setattr(service, "_SCANNED_AT_ONCE", 1)
    assert await rig.service.list_fires(asked) == found, "in however many parts it is looked at"
    assert (await rig.service.list_fires(wire.ListFiresRequest(**{"from": getattr(asked, "from")}, limit=2))).total == 3
    asked.ClearField("to")
    asked.limit = 1
    assert (await rig.service.list_fires(asked)).total == 3
    asked.to.seconds = 1 << 60
    with pytest.raises(InvalidInput, match="is not a time"):
        await rig.service.list_fires(asked)


async def test_a_task_says_when_it_was_last_edited(rig: Rig, peer: Peer) -> None:
    made = await rig.create(every="60s")
    assert made.updated_at == made.created_at
    await rig.pass_time(90)
    at = rig.clock.now()
    made.spec.every = "90s"
    changed = await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=made.spec))
    assert changed.task.updated_at.ToDatetime(UTC) == at
    (listed,) = (await rig.service.list_tasks(wire.ListTasksRequest())).tasks
    assert listed.updated_at.ToDatetime(UTC) == at
    assert listed.created_at == made.created_at
