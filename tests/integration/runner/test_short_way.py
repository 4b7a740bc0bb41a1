"""The short way of a fire decides, writes, sends and tells what the long way does, whatever happens around it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import select, update

from task_runner.dispatcher.dispatcher import key_of
from task_runner.model.task import TaskState
from task_runner.scheduler import firing
from task_runner.scheduler.planning import complete_request
from task_runner.service import changes
from task_runner.store.rows import DueTask, Key, Outgoing
from task_runner.store.schema import fires, metadata, tasks
from tests.integration.runner.conftest import Rig
from tests.integration.runner.machine import POLICY, WHEN, RunnerMachine
from tests.integration.runner.scripted_runtime import Peer
from tests.integration.runner.simulation import World, open_store
from tests.integration.runner.task_machine import SECOND
from tests.integration.runner.test_state_machines import FEW
from tests.support.clock import look_again
from tests.support.postgres import Server
from turnkeeper.times import to_us
from turnkeeper.v1 import agent_runtime_pb2 as runtime

PLAIN = st.fixed_dictionaries(
    {
        "grace": st.sampled_from(["1s", "10s", "5m"]),
        "retries": st.sampled_from([None, 2]),
        "thread_id": st.sampled_from([None, "each"]),
        "jitter": st.sampled_from([None, None, None, "20s"]),
    }
)
MEANWHILE = ["", "nothing", "nothing", "edit", "run", "pause"]
LATE = st.sampled_from([0, 0, 1, 11])
ROUND = {"how": PLAIN, "policy": POLICY, "late": LATE, "meanwhile": st.sampled_from(MEANWHILE)}


class LongWorld(World):
    """Plans and claims what is due in two transactions, and reads a fire back to record its receipt."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.sent: list[runtime.FireRequest] = []

    def tick(self) -> None:
        super().tick()
        self.send()

    def prepare(self) -> None:
        """Nothing is worked out before it is due."""

    def _offer(self, outgoing: Outgoing) -> None:
        self.sent.append(complete_request(outgoing))
        super()._offer(outgoing)


class ShortWorld(LongWorld):
    """Fires what is due in one transaction, and records a receipt without reading."""

    short = 0

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.known: dict[str, firing.NextFire | None] = {}

    def prepare(self) -> None:
        self.known = self.run(lambda session: firing.prepare(session, [self.task_id]))

    def crash(self) -> None:
        super().crash()
        self.known = {}

    def tick(self) -> None:
        self.look_at_cursors()
        room = 10 if self.connected else 0
        fire: Any = {"limit": 128, "known": self.known, "sent_at": self.now, "room": room, "reachable": self.connected}
        planned = self.run(lambda session: firing.fire_due(session, self.now, **fire))
        self.told += planned.events
        for key, request, _ in planned.sent:
            ShortWorld.short += 1
            written = self.run(lambda session, key=key: session.fires.unanswered(key.entry_id - 1, 1))[0]
            assert key == key_of(written.fire)
            super()._offer(written)
            assert self.sent[-1] == runtime.FireRequest.FromString(request)
            self._know(key)
        self.send()

    def _offer(self, outgoing: Outgoing) -> None:
        super()._offer(outgoing)
        self._know(key_of(outgoing.fire))

    def _know(self, key: Key) -> None:
        self.receipts[-1] = self.receipts[-1][0], key


class Both:
    """Two of a kind: what is done to it is done to both; what it says is what the first says."""

    def __init__(self, *each: Any) -> None:
        self.__dict__["each"] = each

    def __setattr__(self, name: str, value: Any) -> None:
        for each in self.each:
            setattr(each, name, value)

    def __bool__(self) -> bool:
        return bool(self.each[0])

    def __getattr__(self, name: str) -> Any:
        found = [getattr(each, name) for each in self.each]
        if name in {"peer", "receipts"}:
            return Both(*found)
        return (lambda *args, **named: _first_of(found, args, named)) if callable(found[0]) else found[0]


def _first_of(both: list[Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    said: list[Any] = []
    for each in both:
        try:
            said.append((each(*args, **named), None))
        except Exception as error:  # noqa: BLE001  raised below, once both have done it
            said.append((None, error))
    assert {type(error) for _, error in said} == {type(said[0][1])}, said
    if said[0][1] is not None:
        raise said[0][1]
    return said[0][0]


class TwoWays(RunnerMachine):
    """All that can happen to a task, on the long and on the short way side by side."""

    other: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.world: Any = Both(LongWorld(self.engine), ShortWorld(self.other))

    @initialize(when=WHEN, how=PLAIN, policy=POLICY)
    def create(self, when: Any, how: Any, policy: Any) -> None:
        self.limit = None
        self.world.create(**when, **how, **policy)
        self.cursor = self.world.now
        self.world.connect()

    def judge_what_overlap_skipped(self) -> None:
        """Not here: a tick sends too, before the rules of a runner with separate steps know of it."""

    @rule(**ROUND)
    def the_next_falls_due(self, how: Any, policy: Any, late: int, meanwhile: str) -> None:
        """It was prepared, and then something happened or nothing; the fire before has ended."""
        self.world.peer.refuses = False
        if self.state is TaskState.DISABLED:
            self.enable()
        elif self.state is TaskState.PAUSED:
            self.resume(replay=False)
        for _ in range(3):
            self.world.peer.release(self.world.now)
            self.everything()
            self.world.peer.end("succeeds", self.world.now)
        self.follow(100)
        if meanwhile:
            self.world.prepare()
        if meanwhile == "edit":
            self.edit({"every": "60s"}, how, policy)
        elif meanwhile == "run":
            self.run()
        elif meanwhile == "pause":
            self.pause(None)
            self.resume(replay=False)
        self.world.now = max(self.world.now, self.world.task().wake_at or self.world.now) + late * SECOND
        self.everything()

    @invariant()
    def both_ways_come_to_the_same(self) -> None:
        long, short = (_all_of(world) for world in self.world.each)
        for name, rows in long.items():
            assert rows == short[name], name


def _all_of(world: LongWorld) -> dict[str, Any]:
    with world.engine.begin() as connection:
        tables = {
            table.name: connection.execute(select(table).order_by(*table.primary_key)).all()
            for table in metadata.sorted_tables
        }
    receipts = [receipt for receipt, _ in world.receipts]
    return tables | {"told": world.told, "sent": world.sent, "receipts": receipts, "turns": world.peer.turns}


@pytest.fixture(scope="module")
def stores(postgres_server: Server | None) -> Iterator[tuple[Any, Any]]:
    """Two stores in which all that is done is done to both, so that they number their rows alike."""
    one, other = (open_store(postgres_server.create() if postgres_server else "sqlite://") for _ in range(2))
    yield one, other
    one.dispose()
    other.dispose()


def test_both_ways_decide_the_same(stores: tuple[Any, Any]) -> None:
    (TwoWays.engine, TwoWays.other), ShortWorld.short = stores, 0
    fall_due()
    assert ShortWorld.short > 8, "hardly anything took the short way"


def test_both_ways_decide_the_same_whatever_else_happens(stores: tuple[Any, Any]) -> None:
    TwoWays.engine, TwoWays.other = stores
    run_state_machine_as_test(TwoWays, settings=type(FEW)(FEW, max_examples=4))


@settings(FEW, max_examples=12)
@given(when=WHEN, rounds=st.lists(st.fixed_dictionaries(ROUND), min_size=3, max_size=6))
def fall_due(when: Any, rounds: list[dict[str, Any]]) -> None:
    life = TwoWays()
    life.create(when, rounds[0]["how"], rounds[0]["policy"])
    for each in rounds:
        life.the_next_falls_due(**each)
        life.both_ways_come_to_the_same()


def _edited(world: Any) -> None:
    world.edit(every="60s", prompt="other words")


def _paused(world: Any) -> None:
    world.run(lambda s: changes.stop(s, "digest", TaskState.PAUSED, "", world.now))


def _run_by_hand(world: Any) -> None:
    world.run(lambda s: changes.run_now(s, "digest", "r1", world.now))


def _a_minute_late(world: Any) -> None:
    world.now += 60 * SECOND


def _too_late(world: Any) -> None:
    world.now += 11 * SECOND


def _fired_before_the_clock_went_back(world: Any) -> None:
    known = world.each[1].known
    world.now += 60 * SECOND
    world.tick()
    world.now -= 60 * SECOND
    world.stepped_back = True
    world.each[1].known = known


def _tried_again_in_one_second(world: Any) -> None:
    world.now -= SECOND


@pytest.mark.parametrize(
    "then",
    [
        _edited, _paused, _run_by_hand, _a_minute_late, _too_late, _fired_before_the_clock_went_back,
        _tried_again_in_one_second,
    ],
)  # fmt: skip
def test_what_was_prepared_is_void_once_it_is_not_what_planning_comes_to(stores: tuple[Any, Any], then: Any) -> None:
    world: Any = Both(LongWorld(stores[0]), ShortWorld(stores[1]))
    ShortWorld.short = 0
    world.create(every="60s", grace="10s")
    world.connect()
    world.prepare()
    (prepared,) = world.each[1].known.values()
    now = world.now
    world.now += 60 * SECOND
    task = DueTask(task_id=world.task_id, revision=1, cursor_us=prepared.cursor_us, alone=True)
    assert prepared.goes(task, to_us(world.now))
    if then in {_edited, _paused}:  # a moment before
        world.now -= SECOND
    then(world)
    if then in {_edited, _paused}:
        world.now += SECOND
    for _ in range(2):
        world.tick()
        long, short = (_all_of(each) for each in world.each)
        assert long == short
    for changed in (
        task._replace(alone=False), task._replace(revision=2), task._replace(cursor_us=task.cursor_us - 1),
    ):  # fmt: skip
        assert not prepared.goes(changed, to_us(now + 60 * SECOND))
    for seconds, goes in ((59.999999, False), (60, True), (70, True), (70.000001, False)):
        assert prepared.goes(task, to_us(now + seconds * SECOND)) is goes


CHANGES: list[Any] = [
    update(tasks).values(state="paused"),
    update(tasks).values(rewound_us=1),
    update(fires).values(is_open=True),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_task_that_takes_a_decision_is_read_as_such_with_what_is_due(engine: Any, change: Any) -> None:
    world = World(engine)
    world.create(every="60s")
    world.run(lambda s: changes.run_now(s, "digest", "r1", world.now))

    def alone(*first: Any) -> list[bool]:
        for each in first:
            with engine.begin() as connection:
                connection.execute(each)
        due = world.run(lambda session: session.tasks.due_tasks(world.now + 60 * SECOND, 10))
        return [bool(each.alone) for each in due]

    assert alone(update(fires).values(is_open=False, ready_us=None)) == [True]
    assert alone(change) == [False]


def test_a_later_time_that_is_due_ends_the_one_that_was_prepared(engine: Any) -> None:
    world = ShortWorld(engine)
    world.create(every="60s", grace="5m")
    world.prepare()
    (prepared,) = world.known.values()
    assert prepared is not None
    assert prepared.until_us - prepared.from_us == 59_999_999


async def test_what_is_handed_over_after_the_stream_broke_goes_with_the_next(rig: Rig, peer: Peer) -> None:
    await rig.create()
    async with rig.running():
        await _until(lambda: rig.dispatcher.room() > 0)
        handed = list[Any]()
        rig.dispatcher.take = handed.extend  # type: ignore[method-assign]  the stream is gone before they are handed
        await rig.pass_time(60)
        assert await rig.history() == [("sent", "", 1)]
        assert [key.fire_id for key, *_ in handed] == [rig.trail.named("fire.committed")[0]["fire_id"]]
    again = Rig(rig.home, rig.clock, rig.place)
    async with again.running():
        await again.trail.saw("fire.accepted")
    (request,) = peer.received
    assert request.fire_id == handed[0][0].fire_id
    assert request == runtime.FireRequest.FromString(handed[0][1])
    await again.close()


async def test_a_fire_that_waits_to_be_sent_goes_before_those_that_fall_due_later(rig: Rig, peer: Peer) -> None:
    first = await rig.create("first")
    await rig.create("second")
    await rig.pass_time(60)
    fires = await rig.store.run(lambda session: session.fires.ready(rig.clock.now(), 10, caught_up=False))
    assert len(fires) == 2, "nothing is connected"
    task = await rig.create("third", **{"in": "1s"})
    rig.clock.advance(1)
    known = await rig.store.run(lambda session: firing.prepare(session, [task.id, first.id]))
    assert known[first.id] is None, "one is open"
    fire: Any = {"limit": 9, "known": known, "sent_at": rig.clock.now(), "reachable": True}
    done = await rig.store.rehearse(lambda s: firing.fire_due(s, rig.clock.now(), room=9, **fire))
    assert (done.sent, done.committed) == ([], 1)
    await rig.store.run(lambda s: s.fires.record_sent([replace(each.fire, ready_at=None) for each in fires]))
    for room in (0, 9):
        done = await rig.store.rehearse(lambda s, room=room: firing.fire_due(s, rig.clock.now(), room=room, **fire))
        assert (len(done.sent), done.committed) == (min(room, 1), 1)


async def _until(true: Any) -> None:
    while not true():
        await look_again()


def test_the_first_of_many_go_in_a_small_transaction_and_each_later_one_may_be_as_large_as_all_before() -> None:
    planned, chunks = 0, list[int]()
    while planned < 1000:
        chunks.append(firing.chunk(planned))
        planned += chunks[-1]
    assert chunks[:5] == [52, 52, 104, 128, 128]
    assert set(chunks[5:]) == {128}
