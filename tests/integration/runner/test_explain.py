"""`explain` has a plain answer for every time, whatever became of it."""

from datetime import UTC, datetime, timedelta

import pytest

from task_runner.scheduler.planning import quarantine
from tests.integration.runner.conftest import Rig
from tests.integration.runner.emitting import create, emit
from tests.integration.runner.scripted_runtime import Peer, State
from turnkeeper.v1 import schedules_pb2 as wire

T0 = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def one_clock(rig: Rig, peer: Peer) -> None:
    peer.now = rig.clock.now


async def asked(rig: Rig, seconds: float) -> tuple[str, str]:
    """The verdict and the sentences about a time so many seconds after the start."""
    at = (T0 + timedelta(seconds=seconds)).isoformat()
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=at))
    assert all(line.endswith(".") for line in answer.lines)
    assert "None" not in " ".join(answer.lines)
    return answer.verdict, " ".join(answer.lines)


async def one_turn(rig: Rig, peer: Peer, state: State, *, error: str = "") -> None:
    accepted = len(rig.trail.named("fire.accepted"))
    rig.dispatcher.wake()
    await rig.trail.saw("fire.accepted", accepted + 1)
    await peer.play(peer.received[-1].fire_id, State.STARTED)
    held_by = ["ask-1"] if state is State.HELD else []
    await peer.play(peer.received[-1].fire_id, state, error=error, held_by=held_by)
    names = {State.INTERRUPTED: "fire.interrupted", State.HELD: "fire.held"}
    await rig.trail.saw(names.get(state, "fire.settled"))


@pytest.mark.parametrize(
    ("late", "state", "verdict", "says"),
    [
        (0, State.SUCCEEDED, "succeeded", "It was sent at 2026-03-02T09:01:00Z, when it was due."),
        (30, State.SUCCEEDED, "late", "sent at 2026-03-02T09:01:30Z, 30s after it was due."),
        (0, State.FAILED, "failed", "Its turn failed at 2026-03-02T09:01:00Z: it broke."),
        (0, State.INTERRUPTED, "interrupted", "waits for you: turnkeeper approvals list"),
        (0, State.HELD, "held", "the fire is held, and is sent again after the decision."),
    ],
)
async def test_a_fire_says_how_it_was_sent_and_how_it_ended(rig: Rig, peer: Peer, late, state, verdict, says) -> None:
    await rig.create()
    await rig.pass_time(60 + late)
    async with rig.running():
        await one_turn(rig, peer, state, error="it broke" if state is State.FAILED else "")
    found, text = await asked(rig, 60)
    assert (found, says in text) == (verdict, True), text
    assert "revision 1 of digest was in force" in text
    if verdict == "held":
        assert "Its thread waits for approval ask-1 (turnkeeper approvals list): the fire is held" in text
    if verdict in {"interrupted", "held"}:
        await rig.pass_time(60)
        found, text = await asked(rig, 120)
        assert (found, "waits for you" in text) == (verdict, True), text


async def test_skipped_by_policy(rig: Rig, peer: Peer) -> None:
    await rig.create(catch_up="skip")
    await rig.pass_time(330)
    verdict, text = await asked(rig, 120)
    assert verdict == "skipped"
    assert "not sent within the grace of 10s, and catch-up skip runs no missed fires" in text
    assert "covers 5 scheduled times from 2026-03-02T09:01:00Z to 2026-03-02T09:05:00Z" in text


async def test_stood_for_by_another_and_committed_and_coalesced(rig: Rig, peer: Peer) -> None:
    task = await rig.create()
    await rig.pass_time(60)
    await rig.pass_time(270)
    verdict, text = await asked(rig, 60)
    assert verdict == "stood_for"
    assert f"{task.id}@20260302T090500Z stands for 5 scheduled times" in text
    assert f"{task.id}@20260302T090100Z was committed for it and was merged into {task.id}@20260302T090500Z" in text
    assert (await asked(rig, 300))[0] == "pending"
    async with rig.running():
        rig.dispatcher.wake()
        await rig.trail.saw("fire.accepted")
        await rig.pass_time(60)
        assert (await asked(rig, 360))[0] == "coalesced"


async def test_overlap(rig: Rig, peer: Peer) -> None:
    await rig.create(overlap="skip")
    await rig.pass_time(60)
    async with rig.running():
        await rig.trail.saw("fire.accepted")
        await rig.pass_time(60)
        assert await asked(rig, 120) == ("skipped", (await asked(rig, 120))[1])
        assert (
            "The task's previous fire was still running, so overlap skip started no other fire"
            in (await asked(rig, 120))[1]
        )
        await rig.pass_time(90)
        verdict, text = await asked(rig, 180)
        assert (verdict, "are skipped (overlap skip), and later times count as missed" in text) == ("unplanned", True)
    await rig.service.delete_task(wire.DeleteTaskRequest(name="digest"))
    await rig.create(overlap="cancel-running")
    async with rig.running():
        await rig.pass_time(60)
        await rig.trail.saw("fire.accepted", 2)
        await rig.pass_time(60)
        verdict, text = await asked(rig, 330)
    assert (verdict, "The turn is asked to end at its next await" in text) == ("coalesced", True)


async def test_capped_and_too_old(rig: Rig, peer: Peer) -> None:
    await rig.create(catch_up="run-all", max_catch_up=2, catch_up_window="4m")
    await rig.pass_time(600)
    assert "max_catch_up (2)" in (await asked(rig, 420))[1]
    assert "catch_up_window allows (4m)" in (await asked(rig, 120))[1]


async def test_paused_disabled_and_deleted(rig: Rig, peer: Peer) -> None:
    await rig.create()
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest", note="away"))
    await rig.pass_time(100)
    verdict, text = await asked(rig, 60)
    assert (verdict, "paused: away" in text) == ("paused", True)
    await rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))
    assert await asked(rig, 60) == ("skipped", (await asked(rig, 60))[1])
    assert "The task was paused at that time." in (await asked(rig, 60))[1]
    await rig.service.disable_task(wire.DisableTaskRequest(name="digest"))
    assert (await asked(rig, 180))[0] == "disabled"


async def test_a_pause_until_a_time_skips_the_times_up_to_then_and_no_later_time(rig: Rig, peer: Peer) -> None:
    await rig.create()
    until = (T0 + timedelta(seconds=180)).isoformat()
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest", note="away", until=until))
    for seconds in (60, 180):
        verdict, text = await asked(rig, seconds)
        assert verdict == "paused"
        assert "The task is paused: away." in text
        assert "It resumes automatically at 2026-03-02T09:03:00Z." in text
    verdict, text = await asked(rig, 240)
    assert verdict == "future"
    assert "It will fire at 2026-03-02T09:04:00Z" in text
    assert "paused, and resumes automatically before it, at 2026-03-02T09:03:00Z." in text
    await rig.pass_time(180)
    await rig.pass_time(60)
    assert (await asked(rig, 180))[0] == "skipped"
    assert (await asked(rig, 240))[0] == "pending"


async def test_quarantined(rig: Rig, peer: Peer) -> None:
    task = await rig.create()
    await rig.store.run(lambda session: quarantine(session, task.id, "cannot be planned: it broke"))
    verdict, text = await asked(rig, 60)
    assert (verdict, "it broke" in text) == ("quarantined", True)


async def test_outside_its_bounds_excluded_not_a_nominal_time_and_before_creation(rig: Rig, peer: Peer) -> None:
    await rig.create(end_at="2026-03-03T00:00:00Z", exclude=["2026-03-02T10:00:00Z..2026-03-02T10:30:00Z"])
    verdict, text = await asked(rig, 86_400)
    assert (verdict, "end_at is 2026-03-03T00:00:00Z" in text) == ("outside_bounds", True)
    assert (await asked(rig, 3660))[0] == "excluded"
    verdict, text = await asked(rig, 90)
    assert (verdict, "the previous time is 2026-03-02T09:01:00Z, the next 2026-03-02T09:02:00Z" in text) == (
        "not_nominal", True,
    )  # fmt: skip
    verdict, text = await asked(rig, -60)
    assert "The task did not exist, so nothing was due. `turnkeeper task backfill " in text
    assert (verdict, "was created at 2026-03-02T09:00:00Z" in text, "backfill" in text) == (
        "before_creation",
        True,
        True,
    )


async def test_a_backfill_is_offered_only_where_the_schedule_of_now_names_the_time(rig: Rig, peer: Peer) -> None:
    await rig.create(cron="0 9 * * *")
    assert "turnkeeper task backfill" in (await asked(rig, -86_400))[1]
    task = await rig.task()
    task.spec.cron = "0 8 * * *"
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=task.spec))
    text = (await asked(rig, -86_400))[1]
    assert ("The present schedule does not include that time either." in text, "backfill" in text) == (True, False)


async def test_limit_reached_and_budget(rig: Rig, peer: Peer) -> None:
    await rig.create(max_fires=1)
    await rig.pass_time(60)
    async with rig.running():
        await one_turn(rig, peer, State.SUCCEEDED)
    verdict, text = await asked(rig, 120)
    assert (verdict, "max_fires is 1, and 1 fires have been accepted" in text) == ("limit", True)


async def test_budget(rig: Rig, peer: Peer) -> None:
    await rig.create(budget={"turns_per_day": 1})
    await rig.pass_time(60)
    async with rig.running():
        await one_turn(rig, peer, State.SUCCEEDED)
    verdict, text = await asked(rig, 120)
    assert (verdict, "turns_per_day is 1, 1 used on 2026-03-02" in text) == ("budget", True)


@pytest.mark.parametrize(
    ("fields", "state", "ended", "verdict", "reason"),
    [
        (
            {"budget": {"turns_per_day": 1}},
            State.SUCCEEDED,
            "budget",
            "budget",
            "turns_per_day is 1, 1 used on 2026-03-02",
        ),
        ({"pause_after_failures": 1}, State.FAILED, "failed", "paused", "it broke"),
    ],
)
async def test_without_a_time_a_task_that_was_paused_is_explained_by_its_pause(
    rig: Rig, peer: Peer, fields, state, ended, verdict, reason
) -> None:
    await rig.create(**fields)
    await rig.pass_time(60)
    async with rig.running():
        await one_turn(rig, peer, state, error="it broke" if state is State.FAILED else "")
    newest = wire.ExplainFireRequest(name="digest")
    assert (await rig.service.explain_fire(newest)).verdict == ended  # no time was missed yet
    await rig.pass_time(200)
    answer = await rig.service.explain_fire(newest)
    text = " ".join(answer.lines)
    assert answer.at.ToDatetime(tzinfo=UTC) == T0 + timedelta(seconds=240)
    assert (answer.verdict, "The task is paused: " in text, reason in text) == (verdict, True, True), text


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        ("turns_per_day", "until 2026-03-03T00:00:00Z"),
        ("tokens_per_fire", "until you resume the task (turnkeeper task resume digest)"),
    ],
)
async def test_without_a_time_a_task_that_its_budget_stops_is_explained_by_that_first(
    rig: Rig, peer: Peer, key: str, ends: str
) -> None:
    await rig.create(budget={key: 1})
    await rig.pass_time(60)
    async with rig.running():
        rig.dispatcher.wake()
        await rig.trail.saw("fire.accepted")
        await peer.play(peer.received[-1].fire_id, State.SUCCEEDED, tokens_in=1)
        await rig.trail.saw("task.paused")
    for seconds in (1, 200):  # before another time comes due, and after
        rig.clock.advance(seconds)
        answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))
        first = f"The budget of digest stops it since 2026-03-02T09:01:00Z {ends}: {key} is 1, 1 used "
        assert (answer.verdict, answer.lines[0].startswith(first)) == ("budget", True), answer.lines
    assert (await asked(rig, 60))[0] == "succeeded", "a time that is named is explained as before"
    await rig.service.resume_task(wire.ResumeTaskRequest(name="digest"))
    assert "The budget" not in (await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))).lines[0]


async def test_superseded_by_an_edit_and_the_revision_then_in_force(rig: Rig, peer: Peer) -> None:
    await rig.create()
    rig.clock.advance(90)
    spec = wire.TaskSpec(name="digest", cron="0 12 * * *", category="loop", channel="general", prompt="p")
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
    verdict, text = await asked(rig, 120)
    assert verdict == "superseded"
    assert "Revision 1, in force from 2026-03-02T09:00:00Z, includes that time." in text
    assert "0 12 * * *" in text
    verdict, text = await asked(rig, 60)
    assert (verdict, "an edit removed its time from the schedule" in text) == ("skipped", True)
    assert "revision 1 of digest was in force (from 2026-03-02T09:00:00Z until 2026-03-02T09:01:30Z)" in text


async def test_the_future_says_what_will_happen_and_with_its_jitter_when(rig: Rig, peer: Peer) -> None:
    task = await rig.create(jitter="30s")
    verdict, text = await asked(rig, 600)
    assert verdict == "future"
    assert f"as {task.id}@20260302T091000Z" in text
    assert "delayed by its jitter to 2026-03-02T09:10:" in text
    assert "catch-up run-once decides" in text


async def test_fires_beside_the_schedule_are_told_and_without_a_time_the_newest_is(rig: Rig, peer: Peer) -> None:
    await rig.create()
    await rig.pass_time(60)
    await rig.service.run_task(wire.RunTaskRequest(name="digest", request_id="abc"))
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))
    assert answer.at.ToDatetime(UTC) == T0 + timedelta(seconds=60)
    assert "~mabc was requested manually: pending." in answer.lines[-1]
    assert answer.fire.outcome == "pending"


async def test_a_run_by_hand_names_its_revision_even_if_an_edit_was_made_in_the_same_second(rig: Rig) -> None:
    await rig.create(cron="0 7 * * *")
    rig.clock.advance(1.2)
    spec = wire.TaskSpec(name="digest", cron="0 7 * * *", category="loop", channel="general", prompt="another")
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
    rig.clock.advance(0.1)
    await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    rig.clock.advance(0.1)
    spec.prompt = "a third"
    await rig.service.update_task(wire.UpdateTaskRequest(name="digest", spec=spec))
    for at in ("", (T0 + timedelta(seconds=1)).isoformat()):
        answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=at))
        assert answer.revision == 2, answer.lines
        assert "revision 2 of digest was in force (from 2026-03-02T09:00:01.2" in answer.lines[0]


async def test_of_a_task_that_was_never_due_the_next_time_is_told(rig: Rig) -> None:
    await rig.create(cron="0 7 * * *")
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))
    assert answer.verdict == "future"
    assert "2026-03-03T07:00:00Z" in " ".join(answer.lines)


@pytest.mark.parametrize(
    ("schedule", "hours_later", "given", "taken", "why"),
    [
        ({"cron": "59 4 * * *"}, 66, "04:59", "Thu 2026-03-05 04:59", "the nearest with a fire"),  # now Thursday 03:00
        ({"cron": "59 4 * * *"}, 71, "4:59am", "Thu 2026-03-05 04:59", "the nearest with a fire"),  # now 08:00
        ({"cron": "59 4 * * 3"}, 66, "04:59", "Wed 2026-03-04 04:59", "the nearest with a fire"),
        ({"cron": "0 9 * * *"}, 66, "at 04:59", "Thu 2026-03-05 04:59", "the nearest; the task has no fire"),
        ({"cron": "59 4 * * *"}, 1, "04:59", "Tue 2026-03-03 04:59", "the nearest with a fire"),  # created at nine
    ],
)
async def test_a_time_of_day_is_the_nearest_with_a_fire_and_the_day_is_said(
    rig: Rig, schedule: dict[str, str], hours_later: int, given: str, taken: str, why: str
) -> None:
    await rig.create(every="", timezone="UTC", **schedule)
    await rig.pass_time(hours_later * 3600)
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at=given))
    assert f"04:59 was taken to be on {taken[:-6]} in UTC, {why}" in answer.lines[-1]
    assert f"{answer.at.ToDatetime(UTC):%a %Y-%m-%d %H:%M}" == taken


async def test_a_time_of_day_is_one_in_the_zone_of_the_task(rig: Rig) -> None:
    await rig.create(every="", cron="59 4 * * *", timezone="Asia/Tokyo")
    await rig.pass_time(3600 * 12)  # Tuesday 06:00 in Tokyo
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at="04:59"))
    assert answer.at.ToDatetime(UTC) == datetime(2026, 3, 2, 19, 59, tzinfo=UTC)
    assert "on Tue 2026-03-03 in Asia/Tokyo" in answer.lines[-1]


async def test_a_time_of_day_that_the_clocks_skip_is_looked_for_on_other_days(rig: Rig) -> None:
    await rig.create(every="", cron="30 2 * * *", timezone="Europe/Berlin")
    await rig.pass_time((datetime(2026, 3, 29, 0, 0, tzinfo=UTC) - T0).total_seconds())  # at 02:00 it becomes 03:00
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at="02:30"))
    assert answer.at.ToDatetime(UTC) == datetime(2026, 3, 28, 1, 30, tzinfo=UTC)


async def test_a_weekly_task_is_explained_at_its_nearest_day(rig: Rig) -> None:
    await rig.create(every="", cron="59 4 * * 6", timezone="UTC")  # Saturdays; now it is Monday
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest", at="04:59"))
    assert answer.at.ToDatetime(UTC) == datetime(2026, 3, 7, 4, 59, tzinfo=UTC)


@pytest.mark.parametrize("schedule", [{"every": "1h"}, {"on": "demo"}], ids=["schedule", "event"])
async def test_a_stopped_task_says_so_also_if_its_newest_fire_was_another_one(
    rig: Rig, schedule: dict[str, str]
) -> None:
    await create(rig, "digest", **schedule)
    await rig.pass_time(1)
    if "on" in schedule:
        await emit(rig)
    else:
        await rig.service.run_task(wire.RunTaskRequest(name="digest"))
    await rig.service.pause_task(wire.PauseTaskRequest(name="digest", note="holidays", until="2026-03-05T09:00:00Z"))
    answer = await rig.service.explain_fire(wire.ExplainFireRequest(name="digest"))
    assert answer.HasField("fire")
    told = "The task is paused: holidays. Times that come due meanwhile are skipped when it is resumed."
    assert [f"{told} It resumes automatically at 2026-03-05T09:00:00Z."] == [one for one in answer.lines if told in one]
