"""What authors ask of the runner, on a real store in process."""

import asyncio
from datetime import UTC, timedelta

import pytest

from task_runner.service.watch import REST_S
from tests.integration.runner.conftest import Rig
from tests.integration.runner.scripted_runtime import Peer
from tests.support.clock import look_again
from turnkeeper.errors import Conflict, InvalidInput, NotFound
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire


def spec(**fields) -> wire.TaskSpec:
    fields = {"name": "digest", "every": "60s", "category": "loop", "channel": "general", "prompt": "p"} | fields
    return wire.TaskSpec(**{name: value for name, value in fields.items() if value is not None})


async def test_creation_fills_in_and_echoes_every_default(rig: Rig, peer: Peer) -> None:
    answer = await rig.service.create_task(wire.CreateTaskRequest(spec=spec(every="7m")))
    task = answer.task
    assert (task.state, task.kind, task.schedule) == ("active", "every", "every 7m, exactly")
    assert (task.spec.timezone, task.spec.catch_up, task.spec.overlap, task.spec.grace) == (
        "UTC", "run-once", "coalesce", "10s",
    )  # fmt: skip
    assert [nominal.local for nominal in answer.next] == [
        "2026-03-02T09:07:00+00:00", "2026-03-02T09:14:00+00:00", "2026-03-02T09:21:00+00:00",
    ]  # fmt: skip
    assert answer.warnings == []


@pytest.mark.parametrize(
    ("fields", "corrected"),
    [
        ({"rrule": "FREQ=DAILY;BYHOUR=9"}, "FREQ=DAILY;BYHOUR=9;BYMINUTE=0"),
        ({"rrule": "FREQ=DAILY;BYHOUR=9;BYMINUTE=30"}, ""),
        ({"rrule": "DTSTART:20260302T093000 FREQ=DAILY;BYHOUR=9"}, ""),
        ({"rrule": "FREQ=DAILY;BYHOUR=9", "start_at": "2026-03-02T09:30:00Z"}, ""),
        ({"rrule": "FREQ=MINUTELY;INTERVAL=30;BYHOUR=9"}, ""),
    ],
)
async def test_a_rule_that_names_an_hour_and_no_minute_is_stored_with_a_warning(
    rig: Rig, peer: Peer, fields: dict[str, str], corrected: str
) -> None:
    given = spec(every=None, **fields)
    created = await rig.service.create_task(wire.CreateTaskRequest(spec=given))
    updated = await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=given))
    given.name = "second"
    (applied,) = (await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=[given]))).applied
    for warnings in (created.warnings, updated.warnings, applied.warnings):
        assert [corrected in one for one in warnings] == ([True] if corrected else [])


async def test_who_watches_tasks_is_told_once_what_is_due_was_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    task = (await rig.service.create_task(wire.CreateTaskRequest(spec=spec()))).task
    stream = rig.service.watch_tasks(wire.WatchTasksRequest(names_only=True))
    assert (await anext(stream)).change == "watching"
    reading, read = rig.store.read, list[object]()
    monkeypatch.setattr(rig.store, "read", lambda work: read.append(work) or reading(work))
    told = asyncio.ensure_future(anext(stream))
    rig.service._watched.note([("fire.sent", {"task_id": task.id})])
    await look_again()
    assert not read, "it takes time from what is due"
    rig.clock.advance(REST_S)
    assert ((await told).name, len(read)) == ("digest", 1)


async def test_with_the_runtime_down_a_task_is_created_with_a_warning(rig: Rig) -> None:
    answer = await rig.service.create_task(wire.CreateTaskRequest(spec=spec(category="nosuch")))
    assert "nosuch" in answer.warnings[0]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"name": "Bad"}, "name"),
        ({"name": "task-0123abcd"}, "name"),
        ({"category": "nosuch"}, "category"),
        ({"category": ""}, "category"),
        ({"channel": "../x"}, "channel"),
        ({"prompt": " "}, "prompt"),
        ({"prompt": "a\0"}, "prompt"),
        ({"payload_json": "[1]"}, "payload"),
        ({"payload_json": '{"a": NaN}'}, "payload"),
        ({"every": None, "cron": "61 * * * *"}, "cron"),
        ({"every": None, "at": "2026-03-02T08:00:00Z"}, "at"),
        ({"every": None, "at": "2026-03-29T02:30:00", "timezone": "Europe/Berlin"}, "at"),
        ({"every": None}, "schedule"),
        ({"every": "0s"}, "every"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"catch_up": "maybe"}, "catch_up"),
        ({"overlap": "skip", "catch_up": "run-all"}, "overlap"),
        ({"overlap": "cancel-running", "catch_up": "run-all"}, "overlap"),
        ({"overlap": "later"}, "overlap"),
        ({"overlap": "coalesce", "catch_up": "run-all"}, "overlap"),
        ({"max_fires": 0}, "max_fires"),
        ({"max_catch_up": -1}, "max_catch_up"),
        ({"catch_up_window": "0s"}, "catch_up_window"),
        ({"jitter": "often"}, "jitter"),
        ({"retries": 6}, "retries"),
        ({"retries": -1}, "retries"),
        ({"pause_after_failures": 0}, "pause_after_failures"),
        ({"budget": {"tokens": 5}}, "budget"),
        ({"budget": {"tokens_per_day": 0}}, "budget"),
        ({"exclude": ["Christmas"]}, "exclude"),
        ({"every": None, "at": "2026-03-03T08:00:00Z", "exclude": ["2026-03-03"]}, "schedule"),
        ({"every": None, "rrule": "FREQ=SECONDLY"}, "rrule"),
        ({"every": None, "rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "rrule"),
        ({"agent": "../x"}, "agent"),
        ({"end_at": "2026-03-01T00:00:00Z"}, "schedule"),
        ({"start_at": "2026-04-02T00:00:00Z", "end_at": "2026-04-01T00:00:00Z"}, "end_at"),
        ({"tags": {"": "x"}}, "tags"),
    ],
)
async def test_what_cannot_be_taken_names_its_field_and_writes_nothing(rig: Rig, peer: Peer, fields, where) -> None:
    with pytest.raises(InvalidInput) as error:
        await rig.service.create_task(wire.CreateTaskRequest(spec=spec(**fields)))
    assert error.value.where == where
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).total == 0


async def test_a_name_is_taken_once_and_freed_by_deletion(rig: Rig, peer: Peer) -> None:
    first = await rig.create()
    with pytest.raises(Conflict):
        await rig.create()
    await rig.pass_time(60)
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    rig.clock.advance(1)
    second = await rig.create()
    assert first.id != second.id
    assert await rig.history(first.id) == [("skipped", "deleted", 1)]
    assert await rig.history(second.id) == []
    with pytest.raises(NotFound):
        await rig.service.pause_task(wire.PauseTaskRequest(name=first.id))


async def test_aliases_and_wall_times(rig: Rig, peer: Peer) -> None:
    task = await rig.create(catch_up="run-all-missed")
    assert (task.spec.catch_up, task.spec.overlap) == ("run-all", "queue")
    local = await rig.create("local", at="2026-03-02T12:00", timezone="Europe/Riga")
    assert local.spec.at == "2026-03-02T10:00:00Z"


@pytest.mark.parametrize(("replay", "entries"), [(False, [("skipped", "paused", 3)]), (True, [("pending", "", 3)])])
async def test_pause_and_resume(rig: Rig, peer: Peer, replay, entries) -> None:
    await rig.create()
    task = await rig.service.pause_task(wire.PauseTaskRequest(name="digest", note="away"))
    assert (task.state, task.paused_note) == ("paused", "away")
    await rig.pass_time(200)
    assert await rig.history() == []
    task = await rig.service.resume_task(wire.ResumeTaskRequest(name="digest", replay=replay))
    assert (task.state, task.paused_note) == ("waiting" if replay else "active", "")
    assert await rig.history() == entries


async def test_a_pause_until_a_time_ends_by_itself(rig: Rig, peer: Peer) -> None:
    await rig.create()
    with pytest.raises(InvalidInput, match="future"):
        await rig.service.pause_task(wire.PauseTaskRequest(name="digest", until="2020-01-01T00:00:00Z"))
    until = rig.clock.now() + timedelta(seconds=150)
    task = await rig.service.pause_task(wire.PauseTaskRequest(name="digest", until=until.isoformat()))
    assert task.paused_until.ToDatetime(UTC) == until
    await rig.pass_time(160)
    task = await rig.service.get_task(wire.GetTaskRequest(name="digest"))
    assert (task.state, task.HasField("paused_until")) == ("active", False)
    assert await rig.history() == [("skipped", "paused", 2)]


@pytest.mark.parametrize("name", ["resume", "enable"])
async def test_disable_withdraws_and_only_a_resume_brings_back(rig: Rig, peer: Peer, name: str) -> None:
    await rig.create()
    await rig.pass_time(60)
    await rig.service.disable_task(wire.DisableTaskRequest(name="digest"))
    with pytest.raises(Conflict, match="turnkeeper task resume digest"):
        await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    await rig.pass_time(130)
    request = {"resume": wire.ResumeTaskRequest, "enable": wire.EnableTaskRequest}[name](name="digest")
    await getattr(rig.service, f"{name}_task")(request)
    assert await rig.history() == [("skipped", "disabled", 3)]
    await rig.pass_time(60)
    assert (await rig.history())[-1] == ("pending", "", 1)


async def test_a_deleted_task_returns_within_a_day_and_its_history_has_its_name(rig: Rig, peer: Peer) -> None:
    made = await rig.create()
    await rig.pass_time(60)
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    await rig.pass_time(130)
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).total == 0
    assert await rig.history() == [("skipped", "deleted", 1)], "by its name"
    assert (await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))).lines
    with pytest.raises(NotFound, match="was deleted"):
        await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    back = await rig.service.restore_task(wire.RestoreTaskRequest(name="digest"))
    assert (back.id, back.state, back.reason) == (made.id, "active", "")
    assert await rig.history() == [("skipped", "deleted", 3)], "what came due meanwhile is one skip"
    await rig.pass_time(60)
    assert (await rig.history())[-1] == ("pending", "", 1)
    with pytest.raises(Conflict, match="not deleted"):
        await rig.service.restore_task(wire.RestoreTaskRequest(name="digest"))


async def test_a_paused_task_returns_with_its_note_and_comes_back_when_it_was_to(rig: Rig, peer: Peer) -> None:
    await rig.create()
    until = rfc3339(rig.clock.now() + timedelta(minutes=10))
    pause = wire.PauseTaskRequest(name="digest", note="away: see the\ncalendar", until=until)
    paused = await rig.service.pause_task(pause)
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    await rig.pass_time(130)
    back = await rig.service.restore_task(wire.RestoreTaskRequest(name="digest"))
    assert (back.state, back.paused_note, back.paused_until) == ("paused", pause.note, paused.paused_until)
    await rig.pass_time(600)
    assert (await rig.service.get_task(wire.GetTaskRequest(name="digest"))).state != "paused"
    pause.until = rfc3339(rig.clock.now() + timedelta(minutes=10))
    await rig.service.pause_task(pause)
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    await rig.pass_time(700)
    await rig.service.restore_task(wire.RestoreTaskRequest(name="digest"))
    await rig.pass_time(1)
    assert (await rig.service.get_task(wire.GetTaskRequest(name="digest"))).state != "paused", "its pause was over"


@pytest.mark.parametrize("state", ["paused", "disabled"])
async def test_a_task_returns_in_the_state_that_it_had(rig: Rig, peer: Peer, state: str) -> None:
    await rig.create()
    stop = {
        "paused": rig.service.pause_task(wire.PauseTaskRequest(name="digest")),
        "disabled": rig.service.disable_task(wire.DisableTaskRequest(name="digest")),
    }
    for name, call in stop.items():
        await call if name == state else call.close()
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    await rig.pass_time(130)
    assert (await rig.service.restore_task(wire.RestoreTaskRequest(name="digest"))).state == state
    await rig.pass_time(130)
    assert not [one for one in await rig.history() if one[0] == "pending"]


async def test_a_task_does_not_return_after_a_day_or_where_another_has_its_name(rig: Rig, peer: Peer) -> None:
    first = await rig.create()
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    rig.clock.advance(1)
    second = await rig.create()
    with pytest.raises(Conflict, match="another task"):
        await rig.service.restore_task(wire.RestoreTaskRequest(name=first.id))
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    assert (await rig.service.get_task(wire.GetTaskRequest(name="digest"))).id == second.id, "the newest of that name"
    rig.clock.advance(86_401)
    with pytest.raises(Conflict, match="more than a day ago"):
        await rig.service.restore_task(wire.RestoreTaskRequest(name="digest"))
    with pytest.raises(NotFound):
        await rig.service.restore_task(wire.RestoreTaskRequest(name="nosuch"))


async def test_an_update_plans_the_old_schedule_first_and_counts_from_now(rig: Rig, peer: Peer) -> None:
    await rig.create()
    rig.clock.advance(130)
    answer = await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec(every="1h", prompt="q")))
    assert (answer.changed, answer.task.revision) == (True, 2)
    assert [count for _, _, count in await rig.history()] == [2]
    assert answer.task.next_fire_at.ToDatetime().isoformat() == "2026-03-02T10:00:00", "the anchor stays"


async def test_applying_the_same_again_changes_nothing(rig: Rig, peer: Peer) -> None:
    specs = [
        spec(jitter="20s", retries=3, pause_after_failures=2, budget={"tokens_per_day": 9, "turns_per_fire": 2}),
        spec(name="soon", every=None, **{"in": "5m"}),
        spec(name="nine", every=None, cron="0 9 * * 1-5", exclude=["2026-12-25", "2026-12-31..2027-01-02"]),
        spec(name="fridays", every=None, rrule="freq=monthly;BYDAY=-1FR"),
        spec(name="started", every=None, rrule="DTSTART:20260301T090000\nRRULE:FREQ=DAILY;COUNT=5"),
    ]
    request = wire.ApplyTasksRequest(specs=specs)
    rehearsed = await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=specs, dry_run=True))
    assert [done.action for done in rehearsed.applied] == ["created"] * 5
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).total == 0
    assert [done.action for done in (await rig.service.apply_tasks(request)).applied] == ["created"] * 5
    rig.clock.advance(30)
    assert [done.action for done in (await rig.service.apply_tasks(request)).applied] == ["unchanged"] * 5
    shown = (await rig.service.list_tasks(wire.ListTasksRequest())).tasks
    again = await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=[task.spec for task in shown]))
    assert [done.action for done in again.applied] == ["unchanged"] * 5
    specs[0].prompt = "q"
    changed = (await rig.service.apply_tasks(request.__class__(specs=specs))).applied[0]
    assert (changed.action, list(changed.changed_fields)) == ("updated", ["prompt"])


async def test_one_wrong_task_among_many_and_none_is_applied(rig: Rig, peer: Peer) -> None:
    with pytest.raises(InvalidInput, match="second"):
        await rig.service.apply_tasks(wire.ApplyTasksRequest(specs=[spec(), spec(name="second", every="soon")]))
    assert (await rig.service.list_tasks(wire.ListTasksRequest())).total == 0


async def test_lists_filter_and_count(rig: Rig, peer: Peer) -> None:
    await rig.create("a", every="2h", tags={"team": "x"})
    await rig.create("b", every="1h", channel="other")
    await rig.service.pause_task(wire.PauseTaskRequest(name="b"))
    await rig.create("c", every="1h")

    async def names(**fields) -> list[str]:
        answer = await rig.service.list_tasks(wire.ListTasksRequest(**fields))
        return [task.spec.name for task in answer.tasks]

    assert await names() == ["c", "a", "b"]
    assert await names(channel="other") == ["b"]
    assert await names(state="paused") == ["b"]
    assert await names(tags={"team": "x"}) == ["a"]
    assert await names(limit=1) == ["c"]
    answer = await rig.service.list_tasks(wire.ListTasksRequest(limit=1))
    assert (answer.total, answer.paused, answer.decisions_waiting) == (3, 1, 1)


async def test_preview_and_status_and_single_fires(rig: Rig, peer: Peer) -> None:
    shown = await rig.service.preview_schedule(
        wire.PreviewScheduleRequest(spec=wire.TaskSpec(cron="0 9 * * *"), count=2)
    )
    assert [nominal.local for nominal in shown.nominals] == ["2026-03-03T09:00:00+00:00", "2026-03-04T09:00:00+00:00"]
    await rig.create()
    await rig.pass_time(60)
    status = await rig.service.get_status(wire.GetStatusRequest())
    assert (status.tasks, status.open_fires, status.unsent) == (1, 1, 1)
    (fire,) = (await rig.service.list_fires(wire.ListFiresRequest(name="digest"))).fires
    assert (await rig.service.get_fire(wire.GetFireRequest(fire_id=fire.fire_id))).entry_id == fire.entry_id
    with pytest.raises(NotFound):
        await rig.service.get_fire(wire.GetFireRequest(fire_id="nosuch"))
    with pytest.raises(NotFound):
        await rig.service.get_task(wire.GetTaskRequest(name="nosuch"))


def simulated(rig: Rig, **fields) -> wire.SimulateRequest:
    now = rig.clock.now()
    request = wire.SimulateRequest(**fields)
    getattr(request, "from").FromDatetime(now + timedelta(minutes=1))
    request.to.FromDatetime(now + timedelta(hours=1))
    return request


async def test_simulate_tells_what_tasks_would_do_and_changes_nothing(rig: Rig) -> None:
    for name, policy in (("digest", "skip"), ("other", "run-once")):
        await rig.service.create_task(wire.CreateTaskRequest(spec=spec(name=name, every="10m", catch_up=policy)))
    request = simulated(rig, names=["digest"])
    down = request.down.add()
    getattr(down, "from").FromDatetime(rig.clock.now() + timedelta(minutes=5))
    down.to.FromDatetime(rig.clock.now() + timedelta(minutes=35))
    answer = await rig.service.simulate(request)
    assert [(row.outcome, row.count) for row in answer.rows] == [("skipped", 3), ("succeeded", 1), ("succeeded", 1)]
    assert not answer.truncated
    assert {row.task for row in (await rig.service.simulate(simulated(rig))).rows} == {"digest", "other"}
    cut = await rig.service.simulate(simulated(rig, limit=4))
    assert (len(cut.rows), cut.truncated) == (4, True)
    assert not (await rig.service.list_fires(wire.ListFiresRequest(name="digest"))).fires


async def test_simulate_refuses_what_is_no_span(rig: Rig) -> None:
    request = simulated(rig)
    getattr(request, "from").CopyFrom(request.to)
    with pytest.raises(InvalidInput) as error:
        await rig.service.simulate(request)
    assert error.value.where == "to"
