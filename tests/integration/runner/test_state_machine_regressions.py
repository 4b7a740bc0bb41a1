"""What the model found: each once more, in the fewest steps that show it."""

from datetime import timedelta

import pytest

from task_runner.model.task import Fire, Outcome, TaskState
from task_runner.service import changes
from task_runner.service.backfill import backfill
from task_runner.service.explain import explain
from tests.integration.runner.simulation import START, World
from turnkeeper.times import rfc3339
from turnkeeper.v1 import schedules_pb2 as wire


@pytest.fixture
def world(engine) -> World:
    return World(engine)


def passes(world: World, seconds: float) -> None:
    world.now += timedelta(seconds=seconds)
    round_(world)


def round_(world: World) -> None:
    world.tick()
    world.connect()
    world.send()
    world.hear()
    world.follow()


def steps_back(world: World, seconds: float) -> None:
    world.now -= timedelta(seconds=seconds)
    world.stepped_back = True


def stop(world: World, state: TaskState) -> None:
    world.run(lambda session: changes.stop(session, "digest", state, "", world.now))


def last(world: World) -> Fire:
    return world.rows()[-1]


def entries(world: World) -> list[tuple[str, str, int]]:
    return [(row.outcome.value, row.reason, row.count) for row in world.rows() if row.count]


@pytest.mark.parametrize("state", [TaskState.PAUSED, TaskState.DISABLED, TaskState.DELETED])
def test_a_fire_that_is_held_after_its_task_was_stopped_is_not_sent_on_release(world: World, state: TaskState) -> None:
    world.create(every="1h")
    world.connect()
    world.peer.write(world.now)
    world.now += timedelta(hours=1)
    world.tick()
    world.send()
    world.hear()
    stop(world, state)
    world.peer.release(world.now)
    world.follow()  # that it is held, and that it no longer is
    passes(world, 60)
    assert entries(world) == [("skipped", state.value, 1)]
    assert len(world.peer.turns) == 1


def test_a_fire_owed_from_before_an_edit_explains_no_time_that_another_entry_is_about(world: World) -> None:
    world.create(every="60s", catch_up="skip", grace="1s")
    world.peer.write(world.now)
    passes(world, 60)
    passes(world, 245)
    world.edit(every="1h", catch_up="run-once")
    passes(world, 3600)
    world.peer.release(world.now)
    round_(world)
    round_(world)
    fire = next(row for row in world.rows() if row.outcome is Outcome.RUNNING)
    assert (fire.count, fire.first_at) == (1, START + timedelta(hours=1)), "what was owed is not folded across skips"
    asked = wire.ExplainFireRequest(name="digest", at=rfc3339(START + timedelta(minutes=3)))
    assert world.run(lambda session: explain(asked, world.now, session)).verdict == "skipped"


def test_a_fire_whose_turn_fails_after_its_task_was_disabled_is_not_tried_again(world: World) -> None:
    world.create(every="1h", retries=2)
    passes(world, 3600)
    stop(world, TaskState.DISABLED)
    world.peer.end("fails", world.now)
    passes(world, 60)
    passes(world, 60)
    assert entries(world) == [("skipped", "disabled", 1)]
    assert len(world.peer.turns) == 1


def test_a_pause_that_ends_by_itself_still_ends_after_a_fire_was_withdrawn(world: World) -> None:
    world.create(every="1h", retries=2)
    passes(world, 3600)
    until = world.now + timedelta(minutes=10)
    world.run(lambda session: changes.stop(session, "digest", TaskState.PAUSED, "", world.now, until=until))
    world.peer.end("fails", world.now)
    passes(world, 60)
    assert (entries(world), world.task().wake_at) == ([("skipped", "paused", 1)], until)
    passes(world, 600)
    assert world.task().state is TaskState.ACTIVE


def test_an_edit_after_the_limit_on_fires_leaves_no_time_uncovered(world: World) -> None:
    world.create(every="60s", max_fires=1)
    passes(world, 60)
    world.peer.end("succeeds", world.now)
    round_(world)
    passes(world, 600)
    world.edit(every="60s", max_fires=2)
    assert entries(world) == [("succeeded", "", 1), ("skipped", "max_fires", 10)]
    passes(world, 60)
    assert entries(world)[-1] == ("running", "", 1)


def test_a_fire_that_waited_is_not_early_where_the_clock_steps_back_meanwhile(world: World) -> None:
    world.create(every="60s")
    passes(world, 60)
    passes(world, 60)
    assert last(world).outcome is Outcome.WAITING
    steps_back(world, 30)
    world.peer.end("succeeds", world.now)
    passes(world, 0)
    passes(world, 0)
    assert (last(world).outcome, last(world).ready_at) == (Outcome.PENDING, last(world).nominal_at)
    passes(world, 30)
    assert last(world).fired_at == last(world).nominal_at


def test_a_waiting_fire_cut_by_a_step_back_is_named_by_a_time_that_has_come(world: World) -> None:
    world.create(every="60s")
    passes(world, 60)
    passes(world, 1200)
    waiting = last(world)
    assert (waiting.outcome, waiting.count) == (Outcome.WAITING, 20)
    steps_back(world, 600)
    world.tick()
    assert (last(world).count, last(world).nominal_at) == (10, waiting.nominal_at - timedelta(minutes=10))
    world.peer.end("succeeds", world.now)
    round_(world)
    assert all(row.nominal_at <= world.now for row in world.rows())


def test_times_that_come_again_are_not_folded_into_a_second_fire_of_the_same_name(world: World) -> None:
    world.create(every="60s")
    for _ in range(6):  # one fire is under way all the time, what follows waits
        passes(world, 60)
    for _ in range(8):
        world.peer.end("succeeds", world.now)
        passes(world, 0)
        passes(world, 60)
    named = {row.fire_id for row in world.rows()}
    world.peer.end("succeeds", world.now)
    round_(world)
    steps_back(world, 720)  # to the second minute: the third had no fire of its own, the sixth had one
    world.tick()
    for _ in range(5):
        passes(world, 60)
    assert len({row.fire_id for row in world.rows()} - named) > 0, "the third minute fires and is under way"
    for _ in range(12):
        world.peer.end("succeeds", world.now)
        passes(world, 60)
    assert (world.task().state, world.task().reason) == (TaskState.ACTIVE, "")
    assert len({fire_id for fire_id, _ in world.peer.turns}) == len(world.peer.turns)


def test_a_step_back_across_an_edit_cuts_what_the_old_schedule_named_by_the_old_schedule(world: World) -> None:
    world.create(every="60s", catch_up="skip", grace="1s")
    stop(world, TaskState.DISABLED)
    passes(world, 3601)
    world.edit(every="90s", catch_up="skip", grace="1s")
    assert entries(world) == [("skipped", "disabled", 60)]
    steps_back(world, 901)
    world.tick()
    assert entries(world) == [("skipped", "disabled", 45)]


def test_a_backfill_names_each_time_once_where_the_clock_stepped_back_between_two_edits(world: World) -> None:
    world.create(every="60s", catch_up="skip")
    passes(world, 3600)
    world.edit(every="1h", catch_up="skip")
    steps_back(world, 1800)
    world.tick()
    world.edit(every="60s", catch_up="skip")
    passes(world, 2400)
    asked = wire.BackfillTaskRequest(name="digest", to=rfc3339(world.now), all=True, request_id="b")
    setattr(asked, "from", rfc3339(START))
    answer, _ = world.run(lambda session: backfill(asked, world.now, session))
    assert len(set(answer.fire_ids)) == answer.count == 70


def test_a_place_under_the_limit_that_comes_back_is_taken_by_the_next_time(world: World) -> None:
    world.create(every="60s", max_fires=1, overlap="queue", catch_up_window="2h")
    world.now += timedelta(minutes=1)
    world.tick()
    assert last(world).outcome is Outcome.PENDING
    world.now += timedelta(hours=3)
    world.tick()
    assert entries(world) == [("skipped", "catch_up_window", 1)], "the place was taken until then"
    passes(world, 0)
    assert (last(world).outcome, last(world).nominal_at) == (Outcome.RUNNING, world.now)


@pytest.mark.parametrize(
    ("moves", "changes"),
    [(0, {"prompt": "another"}), (0, {"every": "90s"}), (0, {"timezone": "Europe/Riga"}), (400, {})],
    ids=["prompt", "schedule", "time zone", "clock set back"],
)
def test_a_retry_is_not_folded_across_what_was_skipped_before(
    world: World, moves: float, changes: dict[str, str]
) -> None:
    how = {"every": "60s", "catch_up": "skip", "retries": 2, "grace": "10s"}
    world.create(**how)
    passes(world, 60)
    passes(world, 1262)  # twenty times are missed; the last of all waits
    assert entries(world) == [("running", "", 1), ("skipped", "missed", 20), ("waiting", "", 1)]
    if changes:
        world.edit(**how | changes)
    steps_back(world, moves)
    world.tick()
    world.peer.end("fails", world.now)
    for _ in range(20):
        passes(world, 20)
        world.peer.end("fails", world.now)
    missed = next(
        row for row in world.rows() if row.outcome is Outcome.SKIPPED and row.reason == "missed" and row.count > 1
    )
    across = [
        row for row in world.rows() if row.count and row.first_at < missed.first_at and row.last_at > missed.last_at
    ]
    assert across == []
